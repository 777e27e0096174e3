//! What only root can set up: other users, and file systems of a test's own.

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

/// Whether namespaces can be made: not by everybody, and not in every container.
pub fn may_unshare(options: &[&str]) -> bool {
    let mut unshare = Command::new("unshare");
    unshare.args(options).arg("true").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    unshare.status().expect("there is unshare(1)").success()
}

impl Nxlock {
    /// On a machine that has this configuration, and nothing else in its /etc: only the call sees it. For root.
    pub fn on_machine_with(self, configuration: &Path) -> Nxlock {
        let script = r#"mount -t tmpfs none /etc && mkdir /etc/nxlock && cp -r "$1" /etc/nxlock/config.toml && shift && exec "$@""#;
        let words = ["sh", "-c", script, "sh"].map(OsString::from).into_iter();
        let unshare = ["unshare", "--mount"].map(OsString::from).into_iter();
        self.under(unshare.chain(words).chain([configuration.into()]))
    }

    /// By a user to whom the permissions of files mean something: root is one, without two of its capabilities.
    pub fn minding_permissions(self) -> Nxlock {
        let words: &[&str] = match we_are_root() {
            true => &["setpriv", "--bounding-set=-dac_override,-dac_read_search"],
            false => &["env"],
        };
        self.under(words)
    }
}

/// A user whom nobody else is, with a group that is nobody else's. Only root can act as one.
pub struct User {
    id: u32,
    group: Option<u32>,
    /// In its reach, which what cargo has built may not be.
    program: PathBuf,
    /// An address is had by one process at a time, and goes with it.
    _claim: UnixListener,
}

/// No system gives these to anybody.
const UNUSED: std::ops::Range<u32> = 60_578..61_184;

impl User {
    /// One that comes to see the authority's directory.
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
        // By another process: if this one had it open for writing, so would what it forks, and it could
        // not be executed.
        let mut install = Command::new("install");
        let installed = install.args(["-m", "0755", self::program()]).arg(&program).status();
        assert!(installed.is_ok_and(|status| status.success()), "the program is copied");
        User { id, group: None, program, _claim: claim }
    }

    pub fn in_group_of(mut self, other: &User) -> User {
        self.group = Some(other.id);
        self
    }

    /// Of the user, and of its group.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// What stands behind `local:` for it.
    pub fn place(&self) -> PathBuf {
        own_place(self.id)
    }

    pub fn nxlock<I: IntoIterator<Item: Into<OsString>>>(&self, authority: &impl Authority, args: I) -> Nxlock {
        self.by(authority, &self.program, args)
    }

    /// Another program, which finds nxlock in `$NXLOCK`.
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
        // What stands there may be a link: nothing behind it is touched.
        let _ = fs::remove_file(self.place());
        let _ = fs::remove_dir_all(self.place());
    }
}

/// A directory on a small file system of its own, which nobody but the calls made through this sees.
pub struct Mounted {
    directory: TempDir,
    keeper: Running,
}

impl Mounted {
    pub fn start() -> Mounted {
        let directory = tempfile::tempdir().expect("a directory");
        let script = r#"mount -t tmpfs -o size=8k none "$1" && echo up && exec sleep 600"#;
        let path = directory.path().to_str().expect("it is text");
        let mut keeper = Nxlock::by("unshare", ["--mount", "sh", "-c", script, "sh", path]).start();
        keeper.line("up");
        Mounted { directory, keeper }
    }

    /// The directory, as seen from outside.
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
