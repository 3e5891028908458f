//! Slurm cluster of two nodes, and its jobs.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use support::{Finished, finish, text};

/// Names of its nodes.
pub(crate) const NODES: [&str; 2] = ["node1", "node2"];

/// Cluster that runs. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct Cluster {
    /// The script, which is also in the network namespace of Slurm's controller.
    script: Child,
    folder: tempfile::TempDir,
}

/// Job that was submitted.
pub(crate) struct Job<'a> {
    cluster: &'a Cluster,
    id: String,
    output: PathBuf,
}

/// Longest time until a job ends, and its nodes are idle again.
const LIMIT: Duration = Duration::from_secs(90);

impl Cluster {
    #[track_caller]
    pub(crate) fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/slurm/cluster.sh");
        let errors = File::create(folder.path().join("errors")).unwrap();
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", script]).arg(folder.path());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(errors);
        let mut script = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(script.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let cluster = Self { script, folder };
        assert_eq!(line, "ready\n", "{}", read(&cluster.folder.path().join("errors")));
        cluster
    }

    /// Waits until no node has a job any more, or anything to do for one that has ended.
    #[track_caller]
    pub(crate) fn wait_for_idle_nodes(&self) {
        let sinfo = ["sinfo", "--noheader", "--Node", "--format=%T"];
        let states = || self.run(&sinfo).stdout;
        wait_until(|| states().lines().all(|state| state == "idle"), states);
    }

    /// A command beside the controller.
    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let network = format!("--net=/proc/{}/ns/net", self.script.id());
        let mut command = Command::new("nsenter");
        command.arg(network).args(words);
        command.env("SLURM_CONF", self.folder.path().join("slurm.conf"));
        command
    }

    /// Runs one to its end.
    #[track_caller]
    pub(crate) fn run(&self, words: &[&str]) -> Finished {
        finish(self.command(words)).expect(0)
    }

    /// Submits a batch script whose only process is `yardstick launch`, with one rank on each node.
    #[track_caller]
    pub(crate) fn submit(&self, launch: &[&str]) -> Job<'_> {
        let output = self.folder.path().join("output");
        let script = self.folder.path().join("job");
        let words = launch.iter().map(|word| format!("'{word}'")).collect::<Vec<_>>().join(" ");
        let program = env!("CARGO_BIN_EXE_yardstick");
        fs::write(&script, format!("#!/bin/bash\nexec {program} launch {words}\n")).unwrap();
        let _ = fs::remove_file(&output);
        let options =
            ["--parsable", "--no-kill", "--nodes=2", "--ntasks-per-node=1", "--job-name=it"];
        let files = [format!("--output={}", text(&output)), text(&script)];
        let mut command = self.command(&["sbatch"]);
        command.args(options).args(files);
        support::launcher::set_environment(&mut command);
        let id = finish(command).expect(0).stdout.trim().to_owned();
        Job { cluster: self, id, output }
    }

    /// SIGKILL to what Slurm runs of jobs on a node, and with it to their processes.
    #[track_caller]
    pub(crate) fn kill_steps(&self, node: &str) {
        const KILL: &str = r#"for step in $(pgrep -x slurmstepd); do
            [ "$(nsenter --target "$step" --uts hostname)" = "$0" ] || continue
            kill -KILL $(pgrep -P "$step") "$step"
        done"#;
        let id = self.script.id();
        let namespaces = ["pid_for_children", "mnt"].map(|name| format!("/proc/{id}/ns/{name}"));
        let [processes, files] = namespaces;
        let options = [format!("--pid={processes}"), format!("--mount={files}")];
        let mut command = Command::new("nsenter");
        command.args(options).args(["bash", "-c", KILL, node]);
        finish(command).expect(0);
    }

    /// Drops all packets to and from the node, without a notification of any peer.
    #[track_caller]
    pub(crate) fn cut(&self, node: &str) {
        self.run(&["ip", "link", "set", node, "down"]);
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        drop(self.script.stdin.take()); // which ends it
        let _ = self.script.kill();
        let _ = self.script.wait();
    }
}

impl Job<'_> {
    /// Waits until the folder of its run has a checkpoint.
    #[track_caller]
    pub(crate) fn wait_for_checkpoint(&self, run: &Path) {
        let checkpoints = run.join("checkpoints");
        let has_committed = || {
            let mut entries = fs::read_dir(&checkpoints).into_iter().flatten().flatten();
            entries.any(|entry| entry.path().join("MANIFEST.json").exists())
        };
        wait_until(has_committed, || read(&self.output));
    }

    /// Waits for the end of its script, and returns its output. Checks the exit code.
    /// `sbatch --wait` would poll more and more rarely, and wait for lost nodes as well, on which
    /// the job stays COMPLETING.
    #[track_caller]
    pub(crate) fn expect(&self, code: i32) -> String {
        let mut state = String::new();
        let has_ended = || {
            let show = ["scontrol", "--oneliner", "show", "job", &self.id];
            state = self.cluster.run(&show).stdout;
            !["=PENDING ", "=RUNNING "].iter().any(|it| state.contains(it))
        };
        wait_until(has_ended, || read(&self.output));
        let output = read(&self.output);
        assert!(state.contains(&format!(" ExitCode={code}:0 ")), "{state}: {output}");
        output
    }
}

/// Waits until the condition holds; a test that waits too long fails with this message.
#[track_caller]
fn wait_until(mut is_so: impl FnMut() -> bool, otherwise: impl Fn() -> String) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < LIMIT, "after {LIMIT:?}: {}", otherwise());
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn read(path: &Path) -> String {
    String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned()
}
