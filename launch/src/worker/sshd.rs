//! The ssh server of a worker pod, run by the pod's own user.

use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::error::Error;

/// Options of the ssh server.
#[derive(Debug, Clone)]
pub struct SshdOptions {
    /// Path of the server's program.
    pub program: PathBuf,
    /// Port to listen on.
    pub port: u16,
    /// Folder with `id_rsa`, which becomes the host's key, and `authorized_keys`: the
    /// mpi-operator's mount of its secret.
    pub keys: PathBuf,
}

/// Names of variables that belong to the login, or are of no use to ranks.
const NOT_PASSED_ON: [&str; 11] =
    ["HOME", "USER", "LOGNAME", "SHELL", "PWD", "OLDPWD", "HOSTNAME", "TERM", "SHLVL", "_", "MAIL"];

/// Prefixes of such variables: of services, and of a login.
const PREFIXES_NOT_PASSED_ON: [&str; 2] = ["KUBERNETES_", "SSH_"];

/// Starts the server in the foreground, as a child.
///
/// # Errors
/// [`Error::Sshd`] when it refuses to start, [`Error::System`] for files.
pub(super) fn start(
    options: &SshdOptions,
    folder: &Path,
    report: &dyn Fn(&str),
) -> Result<Child, Error> {
    if rustix::process::geteuid().is_root() {
        let _ = fs::create_dir_all("/run/sshd"); // where it confines itself; else it says so
    }
    let key = copy_key(&options.keys.join("id_rsa"), folder)?;
    let config = folder.join("sshd_config");
    let Environment { passed_on, left_out } = Environment::of(std::env::vars_os());
    if !left_out.is_empty() {
        let names = left_out.join(", ");
        report(&format!("not for ranks, as sshd cannot pass them on: {names}"));
    }
    let text = config_text(options, &key, &passed_on);
    // OpenSSH 9.8 and newer penalise hosts whose connections fail, such as those of probes.
    write(&config, format!("PerSourcePenalties no\n{text}").as_bytes())?;
    if check(options, &config).is_err() {
        write(&config, text.as_bytes())?;
        check(options, &config)?;
    }
    let mut command = command(options, &config);
    command.args(["-D", "-e"]).stdin(Stdio::null()).process_group(0);
    command.spawn().map_err(|error| refused(options, &error.to_string()))
}

fn refused(options: &SshdOptions, text: &str) -> Error {
    Error::Sshd { program: options.program.clone(), port: options.port, text: text.to_owned() }
}

fn command(options: &SshdOptions, config: &Path) -> Command {
    let mut command = Command::new(&options.program);
    command.arg("-f").arg(config);
    command
}

/// Checks that the server accepts its configuration.
fn check(options: &SshdOptions, config: &Path) -> Result<(), Error> {
    let output = command(options, config).arg("-t").stdin(Stdio::null()).output();
    let output = output.map_err(|error| refused(options, &error.to_string()))?;
    if output.status.success() {
        return Ok(());
    }
    Err(refused(options, String::from_utf8_lossy(&output.stderr).trim()))
}

/// Copies a key so that only this user can read it, which the server requires of a file that it
/// owns: a secret's may be readable by the group.
fn copy_key(key: &Path, folder: &Path) -> Result<PathBuf, Error> {
    let failed = |source| Error::System { action: format!("read {}", key.display()), source };
    let content = fs::read(key).map_err(failed)?;
    let copy = folder.join("host_key");
    write(&copy, &content)?;
    Ok(copy)
}

fn write(path: &Path, content: &[u8]) -> Result<(), Error> {
    let create = || -> std::io::Result<()> {
        let mut options = OpenOptions::new();
        let mut file: File =
            options.write(true).create(true).truncate(true).mode(0o600).open(path)?;
        file.write_all(content)
    };
    let failed = |source| Error::System { action: format!("write {}", path.display()), source };
    create().map_err(failed)
}

/// Variables of this process for ranks, which are children of a login and see nothing of the pod's
/// environment.
#[derive(Debug, Default)]
struct Environment {
    /// Sorted variables, as NAME=VALUE.
    passed_on: Vec<String>,
    /// Names of variables that a line of a file cannot hold.
    left_out: Vec<String>,
}

impl Environment {
    fn of(variables: impl Iterator<Item = (OsString, OsString)>) -> Self {
        let mut environment = Self::default();
        for (name, value) in variables {
            let name = name.to_string_lossy().into_owned();
            if NOT_PASSED_ON.contains(&name.as_str())
                || PREFIXES_NOT_PASSED_ON.iter().any(|prefix| name.starts_with(prefix))
            {
                continue;
            }
            match value.to_str().filter(|value| !value.contains('\n')) {
                Some(value) => environment.passed_on.push(format!("{name}={value}")),
                None => environment.left_out.push(name),
            }
        }
        environment.passed_on.sort();
        environment
    }
}

/// Builds the configuration: `sshd_config(5)`.
fn config_text(options: &SshdOptions, key: &Path, environment: &[String]) -> String {
    let SshdOptions { port, keys, .. } = options;
    let mut text = format!(
        "Port {port}\n\
         HostKey {}\n\
         AuthorizedKeysFile {}\n\
         StrictModes no\n\
         PasswordAuthentication no\n\
         KbdInteractiveAuthentication no\n\
         PermitRootLogin prohibit-password\n\
         X11Forwarding no\n\
         PidFile none\n\
         MaxStartups 1024\n\
         ClientAliveInterval 5\n\
         ClientAliveCountMax 3\n\
         LogLevel ERROR\n",
        quoted(key.as_os_str()),
        quoted(keys.join("authorized_keys").as_os_str()),
    );
    if !environment.is_empty() {
        text.push_str("SetEnv"); // only the first such line counts
        for variable in environment {
            let _ = write!(text, " {}", quoted(OsStr::new(variable)));
        }
        text.push('\n');
    }
    text
}

fn quoted(text: &OsStr) -> String {
    let text = text.to_string_lossy().replace('\\', "\\\\").replace('"', "\\\"");
    format!("\"{text}\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(variables: &[(&str, &str)]) -> Environment {
        Environment::of(variables.iter().map(|(name, value)| ((*name).into(), (*value).into())))
    }

    fn text(variables: &[(&str, &str)]) -> String {
        let options = SshdOptions {
            program: PathBuf::from("/usr/sbin/sshd"),
            port: 2222,
            keys: PathBuf::from("/keys"),
        };
        config_text(&options, Path::new("/key"), &environment(variables).passed_on)
    }

    #[test]
    fn the_environment_of_the_pod_reaches_logins() {
        let config = text(&[
            ("POD_NAME", "job-worker-0"),
            ("HOME", "/"),
            ("KUBERNETES_PORT", "tcp://10.0.0.1:443"),
            ("NCCL_IB_HCA", "=mlx5_0 mlx5_1"),
            ("QUOTED", "a \"b\" \\"),
            ("LINES", "a\nb"),
        ]);
        let expected = "SetEnv \"NCCL_IB_HCA==mlx5_0 mlx5_1\" \"POD_NAME=job-worker-0\" \
                        \"QUOTED=a \\\"b\\\" \\\\\"\n";
        assert!(config.ends_with(expected), "{config}");
        assert!(config.contains("AuthorizedKeysFile \"/keys/authorized_keys\"\n"));
    }

    #[test]
    fn what_a_line_cannot_hold_is_named() {
        let left_out = environment(&[("LINES", "a\nb"), ("HOME", "a\nb"), ("ONE", "1")]).left_out;
        assert_eq!(left_out, ["LINES"]);
    }

    #[test]
    fn an_empty_environment_is_no_line() {
        assert!(!text(&[]).contains("SetEnv"));
    }
}
