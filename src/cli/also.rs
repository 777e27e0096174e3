//! The command line options that name further locks.

use clap::{ArgMatches, Args, Command, FromArgMatches, ValueHint};

use crate::lock::{LockName, Sharing};

/// The further locks, in the order of the command line.
#[derive(Debug)]
pub struct AlsoArgs(Vec<(LockName, Sharing)>);

/// As clap has them: the order between the two options is lost.
#[derive(Debug, Args)]
#[command(next_help_heading = "Several locks")]
struct Typed {
    /// Hold the lock NAME2 too: all or none.
    ///
    /// May be repeated: 16 locks in all. nxlock takes them in one order that is the same for everybody, so those who ask
    /// for several locks at once never wait for each other in a circle. The command is stopped if one of them is lost.
    /// Other options of a lock are about NAME alone. See SEVERAL LOCKS in nxlock(1).
    #[arg(long, value_name = "NAME2", value_hint = ValueHint::Other, hide_short_help = true)]
    also: Vec<LockName>,

    /// The same, together with all who ask for it with --also-shared or --shared.
    #[arg(long, value_name = "NAME2", value_hint = ValueHint::Other, hide_short_help = true)]
    also_shared: Vec<LockName>,
}

impl AlsoArgs {
    /// Returns the names, and how each is shared.
    pub fn locks(&self) -> &[(LockName, Sharing)] {
        &self.0
    }
}

impl Args for AlsoArgs {
    fn augment_args(command: Command) -> Command {
        Typed::augment_args(command)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Typed::augment_args_for_update(command)
    }
}

impl FromArgMatches for AlsoArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<AlsoArgs, clap::Error> {
        let Typed { also, also_shared } = Typed::from_arg_matches(matches)?;
        let places = |id: &str| matches.indices_of(id).into_iter().flatten();
        let exclusive = places("also").zip(also).map(|(at, name)| (at, (name, Sharing::Exclusive)));
        let shared = places("also_shared").zip(also_shared).map(|(at, name)| (at, (name, Sharing::Shared)));
        let mut locks: Vec<_> = exclusive.chain(shared).collect();
        locks.sort_by_key(|(at, _)| *at);
        Ok(AlsoArgs(locks.into_iter().map(|(_, lock)| lock).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = AlsoArgs::from_arg_matches(matches)?;
        Ok(())
    }
}
