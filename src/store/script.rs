//! The scripts, as a server is sent them.

const ACQUIRE: &str = concat!(include_str!("queue.lua"), include_str!("acquire.lua"));
const RELEASE: &str = concat!(include_str!("queue.lua"), include_str!("release.lua"));
const INSPECT: &str = concat!(include_str!("queue.lua"), include_str!("inspect.lua"));
const RENEW: &str = include_str!("renew.lua");

/// What a server can be asked to do in one step.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Script {
    Acquire,
    Renew,
    Release,
    Inspect,
}

impl Script {
    /// The text, always the same, so that the server's cache holds four. Without comments and
    /// indentation: the server digests every byte of it, every time.
    pub fn text(self) -> String {
        let source = match self {
            Script::Acquire => ACQUIRE,
            Script::Renew => RENEW,
            Script::Release => RELEASE,
            Script::Inspect => INSPECT,
        };
        let mut text = String::with_capacity(source.len());
        for line in source.lines().map(str::trim_start).filter(|line| !line.is_empty() && !line.starts_with("--")) {
            text.push_str(line);
            text.push('\n');
        }
        text
    }

    /// What belongs to a lock beside its key, and is handed to the script.
    pub fn beside(self) -> &'static [&'static str] {
        match self {
            Script::Renew => &["fence"],
            Script::Acquire | Script::Release | Script::Inspect => &["queue", "waiters", "fence"],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_is_sent_without_its_comments() {
        for script in [Script::Acquire, Script::Renew, Script::Release, Script::Inspect] {
            let text = script.text();
            assert!(text.lines().all(|line| !line.contains("--")), "{text}");
            assert!(text.contains("redis.call"));
        }
    }
}
