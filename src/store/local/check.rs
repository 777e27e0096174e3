//! Checks whether a directory is fit to keep locks.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::time::Duration;

use super::directory::{OpenDirectory, Part};
use super::fault::LocalError;
use super::{Local, filesystem};
use crate::clock::{Boot, Moment};
use crate::store::probe::{Finding, finely, scratch_name, try_lock};
use crate::text;
use crate::wait::Limit;

pub fn probe(local: &mut Local) -> Result<Vec<Finding>, LocalError> {
    let directory = OpenDirectory::open(&local.directory)?;
    let mut findings = vec![owner_and_mode(&directory)?];
    let kind = filesystem::name(directory.path());
    findings.push(match kind {
        Some(kind) => Finding::fine("file system", format!("{kind}, of this machine alone")),
        None => Finding::fine("file system", "no known network file system"),
    });
    let boot = Boot::this().map_err(|error| LocalError::no_boot(&error))?;
    findings
        .push(Finding::fine("boot", boot.id().unwrap_or("not known, since /proc/sys is not the kernel's own here")));
    findings.push(locks(local, &directory));
    Ok(findings)
}

fn owner_and_mode(directory: &OpenDirectory) -> Result<Finding, LocalError> {
    let path = directory.path();
    let found = fs::metadata(path).map_err(|error| LocalError::of(path, &error))?;
    let mode = found.permissions().mode() & 0o7777;
    let told = format!("{}, of user {}, mode {mode:04o}", text::path(path), found.uid());
    let meddlesome = mode & 0o002 != 0 && mode & 0o1000 == 0;
    Ok(if meddlesome {
        let hint = format!("chmod +t {}", text::quoted(&path.to_string_lossy()));
        Finding::warning("directory", format!("{told}: everybody may remove everybody's locks"), hint)
    } else {
        Finding::fine("directory", told)
    })
}

/// Tries a lock with a record of its own: written, waited for and removed.
fn locks(local: &mut Local, directory: &OpenDirectory) -> Finding {
    let options = local.options.clone();
    let mut other = Local::new(local.directory.clone(), options.clone());
    let limit = || Limit::until(Moment::now() + options.timeout.max(Duration::from_millis(100)));
    let trial = scratch_name().and_then(|name| {
        let trial = try_lock([&mut *local, &mut other], &name, limit, true);
        let key = options.prefix.key(&name);
        for part in Part::ALL {
            // If this fails, a sweep removes the file after a day.
            let _ = fs::remove_file(directory.file(&key, part));
        }
        trial
    });
    match trial {
        Ok(trial) => {
            let found = format!("taken, renewed, handed over in {} and released", finely(trial.handed_over));
            Finding::fine("locks", found)
        }
        Err(error) => Finding::of_error("locks", &error),
    }
}
