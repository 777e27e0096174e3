//! Checks whether a file system can keep locks: only one of this machine alone can. On a network file system flock(2)
//! and inotify(7) mean little, and the other machines have other clocks.

use super::fault::LocalError;
use crate::error::ErrorKind;
use crate::text;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::statfs;

/// Magic numbers of statfs(2) and of the kernel source.
const NETWORK: [(u32, &str); 17] = [
    (0x6969, "NFS"),
    (0x517b, "SMB"),
    (0xff53_4d42, "CIFS"),
    (0xfe53_4d42, "SMB2"),
    (0x00c3_6400, "Ceph"),
    (0x5346_414f, "AFS"),
    (0x6b41_4653, "AFS"),
    (0x7375_7245, "Coda"),
    (0x564c, "NCP"),
    (0x0102_1997, "9P"),
    (0x0116_1970, "GFS2"),
    (0x7461_636f, "OCFS2"),
    (0x0bd0_0bd0, "Lustre"),
    (0x4750_4653, "GPFS"),
    (0x2003_0528, "OrangeFS"),
    (0x786f_4256, "VirtualBox"),
    (0x1983_0326, "BeeGFS"),
];

/// Magic number that many file systems share; /proc/self/mountinfo has the rest of the name.
const FUSE: u32 = 0x6573_5546;
const NETWORK_FUSE: [&str; 12] = [
    "virtiofs",
    "fuse.sshfs",
    "fuse.glusterfs",
    "fuse.s3fs",
    "fuse.rclone",
    "fuse.davfs",
    "fuse.ceph",
    "fuse.curlftpfs",
    "fuse.gcsfuse",
    "fuse.gvfsd-fuse",
    "fuse.juicefs",
    "fuse.vmhgfs-fuse",
];

/// Checks that the file system of `path` is not a network file system.
///
/// # Errors
/// If machines other than this one are known to be able to write to it.
pub fn keeps_locks(path: &Path) -> Result<(), LocalError> {
    let failed = |error: io::Error| LocalError::of(path, &error);
    let kind = u32::try_from(statfs(path).map_err(|error| failed(error.into()))?.f_type & 0xffff_ffff).unwrap_or(0);
    let network = if kind == FUSE {
        let device = fs::metadata(path).map_err(failed)?.dev();
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        network_fuse(&mounts, device).map(str::to_owned)
    } else {
        NETWORK.iter().find(|(number, _)| *number == kind).map(|(_, name)| (*name).to_owned())
    };
    match network {
        None => Ok(()),
        Some(name) => Err(LocalError::new(
            ErrorKind::Misconfigured,
            format!(
                "{} is on a network file system ({name}), where locks of two machines would not meet",
                text::path(path)
            ),
            "name a directory on this machine's own disk, or a Redis server",
        )),
    }
}

/// Returns the type of a FUSE mount if it is a network file system. Fields as proc_pid_mountinfo(5).
pub fn network_fuse(mounts: &str, device: u64) -> Option<&str> {
    mounted_as(mounts, device).filter(|kind| NETWORK_FUSE.contains(kind))
}

/// Returns the type of the file system of `path`; `None` if /proc does not tell.
pub fn name(path: &Path) -> Option<String> {
    let device = fs::metadata(path).ok()?.dev();
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    mounted_as(&mounts, device).map(str::to_owned)
}

fn mounted_as(mounts: &str, device: u64) -> Option<&str> {
    let number = format!("{}:{}", nix::libc::major(device), nix::libc::minor(device));
    let mount = mounts.lines().find(|line| line.split(' ').nth(2) == Some(&number))?;
    mount.split_once(" - ")?.1.split(' ').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fuse_mount_is_known_by_its_name() {
        let mounts = "29 1 0:25 / /proc rw - proc proc rw\n\
                      40 29 0:48 / /mnt/a rw,nosuid shared:1 - fuse.sshfs host:/a rw\n\
                      41 29 0:49 / /mnt/b rw - fuse.ntfs-3g /dev/sda1 rw\n";
        let device = |minor| nix::libc::makedev(0, minor);
        assert_eq!(network_fuse(mounts, device(48)), Some("fuse.sshfs"));
        assert_eq!(network_fuse(mounts, device(49)), None);
        assert_eq!(network_fuse(mounts, device(50)), None);
    }

    #[test]
    fn a_directory_of_this_machine_is_fit() {
        assert!(keeps_locks(&std::env::temp_dir()).is_ok());
    }
}
