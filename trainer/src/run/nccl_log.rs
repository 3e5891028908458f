//! NCCL's log of this process: the settings that make NCCL write it, and the lifetime of its file;
//! and the order of launches, which is set at the same time.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};

use collectives::transports::Log;
use collectives::{LogSettings, Nccl};
use launch::{bootstrap, environment};
use record::files::Mode;
use record::files::regular_file::create_anew;

use crate::config::{Config, Device, ParallelConfig};
use crate::failure::Failure;
use record::ExitCode;

/// Log file of this process in the folder for temporary files, unless the user has named another.
#[derive(Debug)]
pub(crate) struct NcclLog {
    /// File that this process has created.
    created: Option<PathBuf>,
    /// True if the user has asked for the log, so that the file stays.
    is_asked_for: bool,
    /// Error of making NCCL log, where that was tried.
    error: Option<String>,
}

/// Group of ranks that NCCL has connected, and then nothing before the log reached this size: lines
/// of a connection name neither the group nor ranks of the world.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LoggedGroup {
    /// Ranks of the world, in the order of the group's own.
    pub(super) ranks: Vec<usize>,
    /// Size of the log in bytes.
    pub(super) end: u64,
}

impl NcclLog {
    /// Sets NCCL's variables, if ranks on CUDA devices will use it. Call it before the process has
    /// a second thread. An error only means that transports are not known.
    pub(crate) fn prepare(config: &Config) -> Self {
        let settings = LogSettings::of_process();
        let mut log = Self { created: None, is_asked_for: settings.logs_to_stdout(), error: None };
        if config.settings.run.device == Device::Cuda && is_one_of_several() {
            order_launches(config);
            let path = default_path();
            log.error = log.set_missing(&settings, &path).err();
        }
        log
    }

    fn set_missing(&mut self, settings: &LogSettings, path: &Path) -> Result<(), String> {
        let text = path.to_str().ok_or_else(|| format!("{} is not UTF-8", path.display()))?;
        let missing = settings.missing(text);
        // First: if NCCL cannot open its file, it logs to stdout.
        if missing.iter().any(|variable| variable.name == LogSettings::FILE) {
            create(path).map_err(|error| format!("{}: {error}", path.display()))?;
            self.created = Some(path.to_owned());
        }
        for variable in &missing {
            let set = environment::set_variable(variable.name, &variable.value);
            set.map_err(|error| failure_text(&error))?;
        }
        Ok(())
    }

    /// Returns the content of NCCL's log so far, with a section for each group and one for what
    /// follows, and why it may be incomplete.
    pub(super) fn read(&self, groups: &[LoggedGroup]) -> (Log, Option<String>) {
        let settings = LogSettings::of_process();
        let gap = self.error.clone().or_else(|| settings.hides_transports());
        let Some(path) = settings.file_of_process() else {
            let gap = gap.unwrap_or_else(|| "NCCL's log is not in a file".to_owned());
            return (Log::default(), Some(gap));
        };
        match read_file(&path, groups) {
            Ok(log) => (log, gap),
            Err(error) => {
                let error = format!("NCCL's log {} cannot be read: {error}", path.display());
                (Log::default(), Some(gap.unwrap_or(error)))
            }
        }
    }

    /// Returns the file with the text that NCCL would have written to stdout.
    pub(super) fn redirected_to(&self) -> Option<&Path> {
        self.created.as_deref().filter(|_| self.is_asked_for)
    }

    /// Removes the file when the run is over, unless it may explain why the run failed.
    pub(crate) fn finish(self, failure: Option<&Failure>) {
        let Some(path) = self.created else { return };
        let may_explain = [ExitCode::PeerLost, ExitCode::Environment, ExitCode::Internal];
        let is_of_failure = failure.is_some_and(|failure| may_explain.contains(&failure.code));
        let is_empty = fs::metadata(&path).is_ok_and(|file| file.len() == 0);
        if is_empty || !(is_of_failure || self.is_asked_for) {
            let _ = fs::remove_file(path); // it may be gone
        }
    }
}

/// Makes NCCL order the operations of several communicators, if there may be several, unless the
/// user has decided. Only a second order: the one stream of `Nccl` orders them on any version, so
/// that a failure here does not matter.
fn order_launches(config: &Config) {
    let ParallelConfig { data, shard, .. } = config.settings.parallel;
    let may_have_groups = data != 1 && shard != 1;
    if may_have_groups && std::env::var_os(Nccl::LAUNCH_ORDER).is_none() {
        let _ = environment::set_variable(Nccl::LAUNCH_ORDER, "1");
    }
}

/// Returns whether a launcher has started several processes. The join reports any errors.
fn is_one_of_several() -> bool {
    let launcher = bootstrap::detect_launcher(|name| std::env::var(name).ok());
    launcher.ok().flatten().is_some_and(|launcher| launcher.world != Some(1))
}

/// Returns a path that is unique on all machines and in all containers that may share the folder.
fn default_path() -> PathBuf {
    let host = record::machine::host_name();
    let host = host.split('.').next().unwrap_or_default();
    std::env::temp_dir().join(format!("yardstick-nccl-{host}-{}.log", std::process::id()))
}

/// Creates the file, so that NCCL opens this file and nobody else's. A file that an earlier process
/// with the same id has left is replaced.
fn create(path: &Path) -> io::Result<File> {
    create_anew(path, Mode::Owner).map_err(|error| error.source)
}

/// Returns the size of NCCL's log of this process so far; 0 if there is none.
pub(super) fn written_bytes() -> u64 {
    let file = LogSettings::of_process().file_of_process();
    file.and_then(|path| fs::metadata(path).ok()).map_or(0, |file| file.len())
}

/// Reads a log of any size, line by line.
fn read_file(path: &Path, groups: &[LoggedGroup]) -> io::Result<Log> {
    // Reading a terminal or a pipe would block.
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut file = BufReader::new(File::open(path)?);
    let mut log = Log::default();
    let mut line = Vec::new();
    let mut position = 0;
    let mut ends = groups.iter().map(|group| group.end).peekable();
    while file.read_until(b'\n', &mut line)? > 0 {
        while ends.next_if(|&end| position >= end).is_some() {
            log.begin_section();
        }
        position += line.len() as u64;
        let text = String::from_utf8_lossy(&line);
        if groups.len() <= 1 || is_own(&text) {
            log.add(&text);
        }
        line.clear();
    }
    Ok(log)
}

/// Returns whether this process alone has written a line, which begins with the host, the process
/// and the thread. Where several write to one file, the position of others' lines means nothing.
fn is_own(line: &str) -> bool {
    let mut parts = line.split("NCCL INFO");
    let prefix = parts.next().unwrap_or_default();
    prefix.contains(&format!(":{}:", std::process::id())) && parts.count() == 1
}

fn failure_text(error: &launch::Error) -> String {
    let source = std::error::Error::source(error).map(ToString::to_string);
    format!("{error}: {}", source.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn created(path: &Path, text: &str, is_asked_for: bool) -> NcclLog {
        create(path).unwrap();
        fs::write(path, text).unwrap();
        NcclLog { created: Some(path.to_owned()), is_asked_for, error: None }
    }

    #[test]
    fn the_file_stays_where_it_may_tell_why_a_run_failed_or_was_asked_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("nccl.log");
        let failure = |code| Failure::new(code, anyhow::anyhow!("a failure"));
        let stays = |text, is_asked_for, failure: Option<Failure>| {
            created(&path, text, is_asked_for).finish(failure.as_ref());
            path.exists()
        };
        assert!(!stays("log", false, None), "the run did not fail");
        assert!(stays("log", true, None) && stays("log", true, Some(failure(ExitCode::Usage))));
        for code in [ExitCode::PeerLost, ExitCode::Environment, ExitCode::Internal] {
            assert!(stays("log", false, Some(failure(code))), "{code:?}");
            assert!(!stays("", true, Some(failure(code))), "NCCL was not called");
        }
        assert!(!stays("log", false, Some(failure(ExitCode::Numerical))));
        NcclLog { created: None, is_asked_for: false, error: None }.finish(None);
    }

    #[test]
    fn a_file_that_was_left_is_replaced_and_belongs_to_the_user_alone() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("nccl.log");
        fs::write(&path, "left").unwrap();
        create(&path).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn groups_have_the_lines_that_this_process_wrote_while_they_were_connected() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("nccl.log");
        let line =
            |pid: u32| format!("a:{pid}:1 [0] NCCL INFO Channel 00 : 0[0] -> 1[1] via SHM\n");
        let own = line(std::process::id()).replace("SHM", "SHM/direct");
        let (other, both) = (line(1), format!("{}{}", own.trim_end(), own));
        fs::write(&path, [&other[..], &own, &other, &both].concat()).unwrap();
        let end = |text: &[&str]| text.iter().map(|line| line.len() as u64).sum();
        let group = |ranks: &[usize], end| LoggedGroup { ranks: ranks.to_vec(), end };
        let first = group(&[6, 7], end(&[&other]));
        let second = group(&[6, 2], end(&[&other, &own]));
        let log = read_file(&path, &[first, second]).unwrap();
        assert_eq!([0, 1, 2].map(|section| log.has_connections(section)), [false, true, false]);
        assert_eq!(log.ends_of(6, 1, &[6, 2]).len(), 1);
    }

    #[test]
    fn a_log_may_have_any_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("nccl.log");
        let line = b"a:1:1 [0] NCCL INFO Channel 00 : 0[0] -> 1[1] via SHM/direct\n";
        fs::write(&path, [b"\xff\xfe\n\0", &line[..], b"cut of"].concat()).unwrap();
        let read = |path| read_file(path, &[]);
        assert_eq!(read(&path).unwrap().ends().len(), 1);
        assert!(read(folder.path()).unwrap_err().to_string().contains("not a regular file"));
        assert!(read(Path::new("/dev/null")).is_err());
    }
}
