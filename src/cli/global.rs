//! The options of every verb. `config.rs` owns their values from all sources other than the command line.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use anstream::ColorChoice;
use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{Args, ValueEnum, ValueHint};

use super::positive;
use crate::lock::Prefix;
use crate::log::{self, Level};

/// Options of every verb, accepted before and after it.
#[derive(Debug, Args)]
#[command(next_help_heading = "Options of every verb")]
pub struct GlobalArgs {
    /// Server that keeps the locks.
    ///
    /// redis://[user[:password]@]host[:port][/db], unix:///path[?db=N], or local: for this machine only. Repeat the
    /// option for three or more servers: a majority decides. There is no default. `rediss:` uses TLS;
    /// `redis+sentinel:` and `redis+cluster:` take several hosts; `local:/path` is a directory of your choice.
    /// `valkey:` is another spelling of `redis:`. Without this option, nxlock uses NXLOCK_SERVER, then REDIS_URL, then
    /// the configuration. Every user of this machine can read a password in argv: prefer the environment, or
    /// --password-file.
    #[arg(short, long, global = true, value_name = "URL", env = "NXLOCK_SERVER", hide_env_values = true)]
    pub server: Vec<String>,

    /// Prefix of the locks' keys.
    ///
    /// The key of a lock is P followed by NAME.
    #[arg(
        long,
        global = true,
        value_name = "P",
        env = "NXLOCK_PREFIX",
        default_value = DEFAULT_PREFIX,
        hide_env_values = true
    )]
    pub prefix: Prefix,

    /// Read the configuration only from FILE.
    ///
    /// Without this option, nxlock reads config.toml in $XDG_CONFIG_HOME/nxlock, or else in ~/.config/nxlock, and
    /// then /etc/nxlock/config.toml. A file applies only to options that neither the command line, the environment
    /// nor the file before it sets.
    #[arg(long, global = true, value_name = "FILE", env = "NXLOCK_CONFIG", hide_env_values = true)]
    #[arg(value_parser = file(), value_hint = ValueHint::FilePath)]
    pub config: Option<PathBuf>,

    /// Read the server's password from FILE.
    ///
    /// It is the first line of FILE. It overrides a password in the URL, which overrides the one in REDISCLI_AUTH.
    #[arg(long, global = true, value_name = "FILE", env = "NXLOCK_PASSWORD_FILE", hide_env_values = true)]
    #[arg(value_parser = file(), value_hint = ValueHint::FilePath)]
    pub password_file: Option<PathBuf>,

    /// Run CMD for the server's password.
    ///
    /// nxlock runs `sh -c CMD` for each connection, with no input; the password is the first line of its output. CMD may
    /// take as long as --server-timeout says. For passwords that are valid for minutes, such as IAM tokens. It overrides
    /// a password in the URL, as --password-file does; give only one of the two.
    #[arg(long, global = true, value_name = "CMD", env = "NXLOCK_PASSWORD_COMMAND", hide_env_values = true)]
    #[arg(value_hint = ValueHint::CommandString, hide_short_help = true)]
    pub password_command: Option<String>,

    /// Trust only the certificate authorities in FILE.
    ///
    /// Without this option, nxlock trusts those of the system.
    #[arg(long, global = true, value_name = "FILE", env = "NXLOCK_TLS_CA", hide_env_values = true)]
    #[arg(value_parser = file(), value_hint = ValueHint::FilePath, hide_short_help = true)]
    pub tls_ca: Option<PathBuf>,

    /// Present the client certificate in FILE.
    #[arg(long, global = true, value_name = "FILE", env = "NXLOCK_TLS_CERT", hide_env_values = true)]
    #[arg(value_parser = file(), value_hint = ValueHint::FilePath, hide_short_help = true)]
    pub tls_cert: Option<PathBuf>,

    /// Read the client certificate's key from FILE.
    #[arg(long, global = true, value_name = "FILE", env = "NXLOCK_TLS_KEY", hide_env_values = true)]
    #[arg(value_parser = file(), value_hint = ValueHint::FilePath, hide_short_help = true)]
    pub tls_key: Option<PathBuf>,

    /// Limit of each connect and each reply.
    ///
    /// nxlock waits at most D for a connection, and at most D for a reply.
    #[arg(
        long,
        global = true,
        value_name = "D",
        env = "NXLOCK_SERVER_TIMEOUT",
        default_value = "2s",
        hide_env_values = true
    )]
    #[arg(value_parser = positive)]
    pub server_timeout: Duration,

    /// Print the answer as one JSON document.
    #[arg(long, global = true)]
    pub json: bool,

    /// Report only errors.
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub quiet: bool,

    /// Report each step, with the time elapsed.
    #[arg(short, long, global = true)]
    pub verbose: bool,

    /// Use colours: auto, always or never.
    ///
    /// auto uses them on a terminal.
    #[arg(long, global = true, value_name = "WHEN", value_enum, default_value_t = When::Auto)]
    #[arg(hide_possible_values = true, hide_short_help = true)]
    pub color: When,
}

impl GlobalArgs {
    /// Returns the command that prints the password. An empty one, as from an empty variable, means none.
    pub fn password_command(&self) -> Option<&str> {
        self.password_command.as_deref().filter(|command| !command.trim().is_empty())
    }

    /// Returns the texts that name servers, each one or several.
    pub fn servers(&self) -> impl Iterator<Item = &str> {
        self.server.iter().map(String::as_str).filter(|text| !text.trim().is_empty())
    }

    /// Returns them in one text, as the variable has them.
    pub fn server_text(&self) -> Option<String> {
        Some(self.servers().collect::<Vec<_>>().join(" ")).filter(|servers| !servers.is_empty())
    }

    pub fn log_options(&self, is_run: bool) -> log::Options {
        let level = match (self.quiet, self.verbose) {
            (true, _) => Level::Quiet,
            (_, true) => Level::Verbose,
            _ => Level::Normal,
        };
        log::Options { level, json: self.json, is_run }
    }
}

pub const DEFAULT_PREFIX: &str = "lock:";

/// An option of every verb that has a value of its own: `--NAME`, a variable, and a key of configuration files.
pub struct Setting {
    pub name: &'static str,
    pub variable: &'static str,
    pub is_file: bool,
    /// Another command line needs it to mean the same lock.
    pub locates: bool,
    /// A password may stand in it: nothing shows it.
    pub is_secret: bool,
    /// None if it is not set.
    pub value: fn(&GlobalArgs) -> Option<OsString>,
}

pub const SETTINGS: [Setting; 9] = [
    Setting { is_file: false, ..setting("server", "NXLOCK_SERVER", |global| global.server_text().map(OsString::from)) },
    Setting { is_file: false, ..setting("prefix", "NXLOCK_PREFIX", |global| Some(global.prefix.as_str().into())) },
    // The other options say what it says.
    Setting { locates: false, ..setting("config", "NXLOCK_CONFIG", |global| path(&global.config)) },
    setting("password-file", "NXLOCK_PASSWORD_FILE", |global| path(&global.password_file)),
    Setting {
        is_file: false,
        locates: false,
        is_secret: true,
        ..setting("password-command", "NXLOCK_PASSWORD_COMMAND", |global| global.password_command().map(OsString::from))
    },
    setting("tls-ca", "NXLOCK_TLS_CA", |global| path(&global.tls_ca)),
    setting("tls-cert", "NXLOCK_TLS_CERT", |global| path(&global.tls_cert)),
    setting("tls-key", "NXLOCK_TLS_KEY", |global| path(&global.tls_key)),
    Setting {
        is_file: false,
        locates: false,
        ..setting("server-timeout", "NXLOCK_SERVER_TIMEOUT", |global| {
            Some(format!("{}ms", global.server_timeout.as_millis().max(1)).into())
        })
    },
];

/// Returns the setting of a file that locates.
const fn setting(name: &'static str, variable: &'static str, value: fn(&GlobalArgs) -> Option<OsString>) -> Setting {
    Setting { name, variable, is_file: true, locates: true, is_secret: false, value }
}

fn path(file: &Option<PathBuf>) -> Option<OsString> {
    given(file.as_ref()).map(|path| path.as_os_str().to_owned())
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum When {
    Auto,
    Always,
    Never,
}

impl From<When> for ColorChoice {
    fn from(when: When) -> ColorChoice {
        match when {
            When::Auto => ColorChoice::Auto,
            When::Always => ColorChoice::Always,
            When::Never => ColorChoice::Never,
        }
    }
}

/// Parses a file name. An empty one, as from an empty variable, means none: see [`given`].
fn file() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().map(PathBuf::from)
}

/// Returns a file name unless it is empty.
pub fn given(file: Option<&PathBuf>) -> Option<&PathBuf> {
    file.filter(|file| !file.as_os_str().is_empty())
}

#[cfg(test)]
mod tests {
    use clap::Command;

    use super::*;

    /// A new option is read, printed and handed to the guard by this table.
    #[test]
    fn the_settings_are_all_options_that_a_variable_sets() {
        let command = GlobalArgs::augment_args(Command::new("nxlock"));
        let options = command
            .get_arguments()
            .filter_map(|option| Some((option.get_long()?.to_owned(), option.get_env()?.to_str()?.to_owned())));
        let settings = SETTINGS.iter().map(|setting| (setting.name.to_owned(), setting.variable.to_owned()));
        assert_eq!(settings.collect::<Vec<_>>(), options.collect::<Vec<_>>());
    }
}
