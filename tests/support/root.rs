//! Setups that need root: other users, and file systems for one test.

use std::ffi::{OsStr, OsString};
use std::fs::{self, Permissions};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::unistd::geteuid;
use tempfile::TempDir;

use super::{Authority, Nxlock, Running, program};

pub fn we_are_root() -> bool {
    geteuid().is_root()
}

/// Returns whether the process may create namespaces: not every user may, and not in every container.
pub fn may_unshare(options: &[&str]) -> bool {
    let mut unshare = Command::new("unshare");
    unshare.args(options).arg("true").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    unshare.status().expect("there is unshare(1)").success()
}

/// Returns whether strace is installed, and reports it if not.
#[expect(clippy::print_stderr, reason = "who runs the tests is to know what they did not")]
pub fn may_trace() -> bool {
    let found = Command::new("strace").arg("-V").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if found.is_err() {
        eprintln!("skipped: strace is not installed, and no system call fails or is delayed");
    }
    found.is_ok()
}

impl Nxlock {
    /// Runs the call with this configuration and nothing else in /etc, visible to this call only. Needs root.
    pub fn on_machine_with(self, configuration: &Path) -> Nxlock {
        let script = r#"mount -t tmpfs none /etc && mkdir /etc/nxlock && cp -r "$1" /etc/nxlock/config.toml && shift && exec "$@""#;
        let words = ["sh", "-c", script, "sh"].map(OsString::from).into_iter();
        let unshare = ["unshare", "--mount"].map(OsString::from).into_iter();
        self.under(unshare.chain(words).chain([configuration.into()]))
    }

    /// Runs the call as a user whom file permissions bind: root is one without two of its capabilities.
    pub fn minding_permissions(self) -> Nxlock {
        let words: &[&str] = match we_are_root() {
            true => &["setpriv", "--bounding-set=-dac_override,-dac_read_search"],
            false => &["env"],
        };
        self.under(words)
    }
}

/// A user and a group that nobody else has. Only root can act as one.
pub struct User {
    id: u32,
    group: Option<u32>,
    /// A copy that the user can reach: cargo's target directory may be out of reach.
    program: PathBuf,
    /// An abstract socket address, which one process at a time can bind, and which ends with it.
    _claim: UnixListener,
}

/// Ids that no system assigns.
const UNUSED: std::ops::Range<u32> = 60_578..61_184;

impl User {
    /// Creates a user that may use the authority's directory.
    pub fn visiting(authority: &impl Authority) -> User {
        let claimed = |id| {
            let address = SocketAddr::from_abstract_name(format!("nxlock-test-user-{id}")).expect("it is short");
            Some((id, UnixListener::bind_addr(&address).ok()?))
        };
        let is_new = |id: &u32| fs::symlink_metadata(own_place(*id)).is_err();
        let (id, claim) = UNUSED.filter(is_new).find_map(claimed).expect("a user that is not used");
        let directory = authority.directory();
        fs::set_permissions(&directory, Permissions::from_mode(0o755)).expect("it is ours");
        let program = directory.join(format!("nxlock-{id}"));
        // In another process: if this one had the file open for writing, so would its forked children, and execve(2)
        // of the file would fail.
        let mut install = Command::new("install");
        let installed = install.args(["-m", "0755", self::program()]).arg(&program).status();
        assert!(installed.is_ok_and(|status| status.success()), "the program is copied");
        User { id, group: None, program, _claim: claim }
    }

    pub fn in_group_of(mut self, other: &User) -> User {
        self.group = Some(other.id);
        self
    }

    /// Returns the id of the user and of its group.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Returns the directory that `local:` means for this user.
    pub fn place(&self) -> PathBuf {
        own_place(self.id)
    }

    pub fn nxlock<I: IntoIterator<Item: Into<OsString>>>(&self, authority: &impl Authority, args: I) -> Nxlock {
        self.by(authority, &self.program, args)
    }

    /// Returns a call of another program, which finds nxlock in `$NXLOCK`.
    pub fn by<I: IntoIterator<Item: Into<OsString>>>(
        &self,
        authority: &impl Authority,
        program: impl AsRef<OsStr>,
        args: I,
    ) -> Nxlock {
        let id = self.id.to_string();
        let groups = self.group.map_or("--clear-groups".to_owned(), |group| format!("--groups={group}"));
        let words = ["--reuid", &id, "--regid", &id, &groups, "--"].map(OsString::from);
        let words = words.into_iter().chain([program.as_ref().to_owned()]).chain(args.into_iter().map(Into::into));
        let call = authority.lead(Nxlock::by("setpriv", words)).env("NXLOCK", &self.program);
        call.in_directory(Path::new("/"))
    }
}

fn own_place(id: u32) -> PathBuf {
    format!("/tmp/nxlock-{id}").into()
}

impl Drop for User {
    fn drop(&mut self) {
        // The path may be a link: its target is left alone.
        let _ = fs::remove_file(self.place());
        let _ = fs::remove_dir_all(self.place());
    }
}

/// A directory on a small file system of its own, visible only to the calls made through this.
pub struct Mounted {
    directory: TempDir,
    keeper: Running,
}

impl Mounted {
    pub fn start() -> Mounted {
        let directory = tempfile::tempdir().expect("a directory");
        let script = r#"mount -t tmpfs -o size=64k none "$1" && echo up && exec sleep 600"#;
        let path = directory.path().to_str().expect("it is text");
        let mut keeper = Nxlock::by("unshare", ["--mount", "sh", "-c", script, "sh", path]).start();
        keeper.line("up");
        Mounted { directory, keeper }
    }

    /// Returns the directory as seen from outside the mount namespace.
    pub fn path(&self) -> PathBuf {
        let inside = self.directory.path().strip_prefix("/").expect("it is whole");
        Path::new(&format!("/proc/{}/root", self.keeper.pid())).join(inside)
    }

    #[track_caller]
    pub fn remount(&self, options: &str) {
        let path = self.directory.path().to_str().expect("it is text");
        self.by("mount", ["-o", &format!("remount,{options}"), path]).run().exits(0);
    }

    fn by<I: IntoIterator<Item: Into<OsString>>>(&self, program: &str, args: I) -> Nxlock {
        let pid = self.keeper.pid().to_string();
        let words = ["--target", &pid, "--mount", "--", program].map(OsString::from);
        Nxlock::by("nsenter", words.into_iter().chain(args.into_iter().map(Into::into)))
    }
}

impl Authority for Mounted {
    fn url(&self) -> String {
        format!("local:{}", self.directory.path().display())
    }

    fn directory(&self) -> PathBuf {
        self.path()
    }

    fn nxlock<I: IntoIterator<Item: Into<OsString>>>(&self, args: I) -> Nxlock {
        self.lead(self.by(program(), args))
    }
}
