//! Content and destination of NCCL's log: the environment variables that decide, as NCCL reads
//! them.
//!
//! NCCL reads them at its first call. Its configuration files (`/etc/nccl.conf`, `~/.nccl.conf`)
//! count only for variables that are not set. Source: `src/debug.cc` of NCCL 2.18.6 to 2.30.7.

use std::path::PathBuf;

const LEVEL: &str = "NCCL_DEBUG";
const SUBSYSTEMS: &str = "NCCL_DEBUG_SUBSYS";

/// INIT has the lines of all transports, NET what NICs are capable of, ENV other variables. None of
/// them is logged for each operation.
const LOGGED: &str = "INIT,ENV,NET";

/// Levels whose log has the lines of transports.
const DETAILED: [&str; 3] = ["INFO", "ABORT", "TRACE"];

/// An environment variable and its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Variable {
    /// Its name.
    pub name: &'static str,
    /// Its value.
    pub value: String,
}

/// The variables, where they are set to something.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogSettings {
    level: Option<String>,
    subsystems: Option<String>,
    file: Option<String>,
}

impl LogSettings {
    /// The variable that names NCCL's file.
    pub const FILE: &str = "NCCL_DEBUG_FILE";

    /// Settings of this process.
    pub fn of_process() -> Self {
        Self::read(|name| std::env::var(name).ok())
    }

    /// Settings of an environment.
    pub fn read(variable: impl Fn(&str) -> Option<String>) -> Self {
        let variable = |name| variable(name).filter(|value| !value.is_empty());
        Self {
            level: variable(LEVEL),
            subsystems: variable(SUBSYSTEMS),
            file: variable(Self::FILE),
        }
    }

    /// Variables to set so that NCCL logs the transports of all pairs, into `file` unless the user
    /// has named another. Variables that are set stay: none is added where they hide the
    /// transports.
    ///
    /// ```
    /// # use yardstick_collectives::LogSettings;
    /// let missing = LogSettings::read(|_| None).missing("/logs/nccl");
    /// let missing: Vec<_> = missing.iter().map(|variable| variable.name).collect();
    /// assert_eq!(missing, ["NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE"]);
    /// ```
    pub fn missing(&self, file: &str) -> Vec<Variable> {
        let hidden = match self.level {
            None => self.hidden_subsystems(),
            Some(_) => self.hides_transports(),
        };
        if hidden.is_some() {
            return Vec::new();
        }
        let mut missing = Vec::new();
        let mut set = |name, value: &str| missing.push(Variable { name, value: value.to_owned() });
        if self.level.is_none() {
            set(LEVEL, "INFO");
            if self.subsystems.is_none() {
                set(SUBSYSTEMS, LOGGED);
            }
        }
        if self.file.is_none() {
            set(Self::FILE, &file.replace('%', "%%"));
        }
        missing
    }

    /// Reason why the log lacks the transports of all pairs, if it does.
    pub fn hides_transports(&self) -> Option<String> {
        match &self.level {
            None => self.hidden_subsystems().or_else(|| Some(format!("{LEVEL} is not set"))),
            Some(level) if !is_one_of(level, &DETAILED) => {
                Some(format!("{LEVEL}={level} hides them (unset it, or set it to INFO)"))
            }
            Some(_) => self.hidden_subsystems(),
        }
    }

    fn hidden_subsystems(&self) -> Option<String> {
        let subsystems = self.subsystems.as_ref()?;
        let has_all = ["P2P", "SHM", "NET"].iter().all(|name| is_logged(subsystems, name));
        let hides = !has_all && !is_logged(subsystems, "INIT");
        hides.then(|| format!("{SUBSYSTEMS}={subsystems} hides them (unset it, or add INIT)"))
    }

    /// Returns whether the user wants to see the log, and has named no file for it.
    pub fn logs_to_stdout(&self) -> bool {
        self.file.is_none() && self.level.as_ref().is_some_and(|level| is_one_of(level, &DETAILED))
    }

    /// The file that NCCL writes in the process with this id on this host; `None` where it writes
    /// to stdout or not at all.
    pub fn file(&self, host: &str, pid: u32) -> Option<PathBuf> {
        let is_opened = is_one_of(self.level.as_ref()?, &["WARN", "INFO", "ABORT", "TRACE"]);
        let pattern = self.file.as_ref().filter(|_| is_opened)?;
        Some(expanded(pattern, host, pid).into())
    }

    /// The file that NCCL writes in this process.
    pub fn file_of_process(&self) -> Option<PathBuf> {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
        self.file(host.trim_end(), std::process::id())
    }

    /// The log of this process, for an error of NCCL to name; `None` where there is no such file.
    pub(super) fn written_file() -> Option<PathBuf> {
        Self::of_process().file_of_process().filter(|file| file.is_file())
    }
}

fn is_one_of(value: &str, names: &[&str]) -> bool {
    names.iter().any(|name| value.eq_ignore_ascii_case(name))
}

/// Parses a list as in `INIT,NET`, or `^COLL,P2P` for all others.
fn is_logged(subsystems: &str, name: &str) -> bool {
    let excluded = subsystems.strip_prefix('^');
    let listed = excluded.unwrap_or(subsystems).split(',').map(str::trim);
    let is_listed = listed.into_iter().any(|listed| is_one_of(listed, &[name, "ALL"]));
    is_listed == excluded.is_none()
}

/// `%h` is the host up to its first dot, `%p` the process, `%%` a percent sign.
fn expanded(pattern: &str, host: &str, pid: u32) -> String {
    let mut text = String::new();
    let mut rest = pattern.chars();
    while let Some(character) = rest.next() {
        match (character, rest.clone().next()) {
            ('%', Some('%')) => text.push('%'),
            ('%', Some('h')) => text += &host.split('.').next().unwrap_or(host).replace('/', "-"),
            ('%', Some('p')) => text += &pid.to_string(),
            ('%', Some(other)) => text.extend(['%', other]),
            _ => {
                text.push(character);
                continue;
            }
        }
        rest.next();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = LogSettings::FILE;

    fn settings(variables: &[(&str, &str)]) -> LogSettings {
        let value = |name: &str| variables.iter().find(|(known, _)| *known == name);
        LogSettings::read(|name| value(name).map(|(_, value)| (*value).to_owned()))
    }

    /// The settings with what is missing.
    fn completed(settings: &LogSettings) -> LogSettings {
        let LogSettings { level, subsystems, file } = settings.clone();
        let missing = settings.missing("/logs/100%p");
        let value = |name| missing.iter().find(|new| new.name == name).map(|new| new.value.clone());
        let [new_level, new_subsystems, new_file] = [LEVEL, SUBSYSTEMS, FILE].map(value);
        assert!(level.is_none() || new_level.is_none(), "what is set stays");
        assert!(subsystems.is_none() || new_subsystems.is_none(), "what is set stays");
        assert!(file.is_none() || new_file.is_none(), "what is set stays");
        LogSettings {
            level: level.or(new_level),
            subsystems: subsystems.or(new_subsystems),
            file: file.or(new_file),
        }
    }

    #[test]
    fn what_is_missing_makes_the_transports_visible() {
        for variables in [
            &[][..],
            &[(LEVEL, ""), (FILE, "")],
            &[(LEVEL, "info")],
            &[(SUBSYSTEMS, "INIT")],
            &[(LEVEL, "TRACE"), (SUBSYSTEMS, "^COLL")],
            &[(LEVEL, "INFO"), (SUBSYSTEMS, "net, shm,P2P")],
            &[(SUBSYSTEMS, "ALL")],
        ] {
            let settings = settings(variables);
            let completed = completed(&settings);
            assert_eq!(completed.hides_transports(), None, "{variables:?}");
            let file = completed.file("node-a", 7).unwrap();
            assert_eq!(file.to_str(), Some("/logs/100%p"), "{variables:?}");
        }
        let own = completed(&settings(&[(FILE, "/logs/%h.%p")]));
        assert_eq!(own.hides_transports(), None);
        assert_eq!(own.file("node-a.cluster", 7).unwrap().to_str(), Some("/logs/node-a.7"));
    }

    #[test]
    fn nothing_is_set_where_the_users_settings_hide_transports() {
        for (variables, named) in [
            (&[(LEVEL, "WARN")][..], "NCCL_DEBUG=WARN hides them"),
            (&[(LEVEL, "VERSION"), (FILE, "a")], "NCCL_DEBUG=VERSION"),
            (&[(LEVEL, "INFO"), (SUBSYSTEMS, "COLL,NET,SHM")], "SUBSYS=COLL,NET,SHM hides them"),
            (&[(LEVEL, "INFO"), (SUBSYSTEMS, "^INIT,NET")], "NCCL_DEBUG_SUBSYS=^INIT,NET"),
            (&[(LEVEL, "INFO"), (SUBSYSTEMS, "^ALL")], "NCCL_DEBUG_SUBSYS=^ALL"),
        ] {
            let settings = settings(variables);
            assert_eq!(settings.missing("file"), [], "{variables:?}");
            let reason = settings.hides_transports().unwrap();
            assert!(reason.contains(named), "{reason}");
        }
        assert_eq!(
            settings(&[(SUBSYSTEMS, "COLL")]).missing("file"),
            [],
            "it asks for other lines"
        );
    }

    #[test]
    fn a_file_is_written_from_level_warn_on() {
        let file = |level| settings(&[(LEVEL, level), (FILE, "a")]).file("h", 1);
        assert!(file("warn").is_some() && file("VERSION").is_none() && file("").is_none());
        assert_eq!(settings(&[(LEVEL, "INFO")]).file("h", 1), None);
        assert!(settings(&[(LEVEL, "INFO")]).logs_to_stdout());
        assert!(!settings(&[(LEVEL, "INFO"), (FILE, "a")]).logs_to_stdout());
        assert!(!settings(&[]).logs_to_stdout() && !settings(&[(LEVEL, "WARN")]).logs_to_stdout());
    }

    #[test]
    fn names_of_files_are_expanded() {
        for (pattern, expected) in [
            ("/a/nccl.%h.%p", "/a/nccl.node-a.42"),
            ("%%h%p%x", "%h42%x"),
            ("%p%", "42%"),
            ("plain", "plain"),
        ] {
            assert_eq!(expanded(pattern, "node-a.example.org", 42), expected);
        }
    }
}
