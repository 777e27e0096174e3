//! Whether a directory is fit to keep locks.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::time::Duration;

use super::fault::{Fault, shown};
use super::place::{Part, Place};
use super::{Local, filesystem};
use crate::clock::{Boot, Moment};
use crate::limit::Limit;
use crate::store::examine::{Finding, Seen, finely, scratch_name, try_lock};

pub fn examine(local: &mut Local) -> Result<Vec<Finding>, Fault> {
    let place = Place::open(&local.directory)?;
    let mut findings = vec![directory(&place)?];
    let kind = filesystem::name(place.path());
    findings.push(match kind {
        Some(kind) => Finding::fine("file system", format!("{kind}, of this machine alone")),
        None => Finding::fine("file system", "none that is known to be another machine's"),
    });
    let boot = Boot::this().map_err(|error| Fault::no_boot(&error))?;
    findings
        .push(Finding::fine("boot", boot.id().unwrap_or("not known, since /proc/sys is not the kernel's own here")));
    findings.push(locks(local, &place));
    Ok(findings)
}

fn directory(place: &Place) -> Result<Finding, Fault> {
    let path = place.path();
    let found = fs::metadata(path).map_err(|error| Fault::of(path, &error))?;
    let mode = found.permissions().mode() & 0o7777;
    let told = format!("{}, of user {}, mode {mode:04o}", shown(path), found.uid());
    let meddlesome = mode & 0o002 != 0 && mode & 0o1000 == 0;
    Ok(if meddlesome {
        let quoted = path.to_string_lossy();
        let remedy = format!("chmod +t {}", shlex::try_quote(&quoted).unwrap_or_default());
        Finding::warning("directory", format!("{told}: everybody may remove everybody's locks"), remedy)
    } else {
        Finding::fine("directory", told)
    })
}

/// With a record of its own, written, waited for and removed.
fn locks(local: &mut Local, place: &Place) -> Finding {
    let (timeout, prefix) = (local.timeout, local.prefix.clone());
    let mut other = Local::new(local.directory.clone(), prefix.clone(), timeout);
    let limit = || Limit::until(Moment::now() + timeout.max(Duration::from_millis(100)));
    let tried = scratch_name().and_then(|name| {
        let tried = try_lock([&mut *local, &mut other], &name, limit, &Seen { look: true, heard: |_| true });
        let key = prefix.key(&name);
        for part in [Part::Record, Part::Line] {
            // Else it is cleared away in a day.
            let _ = fs::remove_file(place.file(&key, part));
        }
        tried
    });
    match tried {
        Ok(trial) => {
            let found = format!("taken, renewed, handed over in {} and given back", finely(trial.handed_over));
            Finding::fine("locks", found)
        }
        Err(trouble) => Finding::of_trouble("locks", &trouble),
    }
}
