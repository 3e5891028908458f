//! MPIJob: its pods, as the operator makes them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::image::{self, NAMES, SSH_PORT};
use crate::mpi;
use crate::names::Names;
use crate::network::Network;
use crate::operator::{self, LAUNCHER, worker_name};
use crate::pod::{Pod, Spec, Variable, Volume};
use crate::process::Process;
use crate::training::RUN;
use crate::wait::wait_until;
use support::record;

/// A job with one rank in each worker. It has neither pods at first; dropping it removes all there
/// is of it.
#[derive(Debug)]
pub(crate) struct Job {
    workers: Vec<Option<Pod>>,
    launcher: Option<Pod>,
    network: Network,
    /// Names of all pods that have been started.
    names: Names,
    folder: tempfile::TempDir,
}

/// Command of the workers' sshd in the operator's image, with the port and key of the job.
pub(crate) const PLAIN_SSHD: [&str; 10] = [
    "/usr/sbin/sshd",
    "-De",
    "-f/dev/null",
    "-oPort=2222",
    "-oHostKey=/home/yardstick/.ssh/id_rsa",
    "-oAuthorizedKeysFile=/home/yardstick/.ssh/authorized_keys",
    "-oStrictModes=no",
    "-oPidFile=none",
    "-oUsePAM=no",
    "-oPasswordAuthentication=no",
];

impl Job {
    /// Applies a job with so many workers; none is running yet.
    pub(crate) fn new(workers: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let unique = folder.path().file_name().unwrap().to_string_lossy().replace('.', "-");
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let job = Self {
            workers: (0..workers).map(|_| None).collect(),
            launcher: None,
            network: Network::new(format!("yardstick{unique}")),
            names: Names::new(folder.path().join("names")),
            folder,
        };
        job.make_folder("names");
        image::write(&job.make_folder("image"));
        operator::write_secret(&job.make_folder("ssh"));
        let hostfile = operator::hostfile(workers);
        fs::write(job.make_folder("mpi").join("hostfile"), hostfile).unwrap();
        for volume in ["results", "shared"] {
            allow_all(&job.make_folder(volume));
        }
        job
    }

    /// Starts a worker.
    #[track_caller]
    pub(crate) fn start_worker(&mut self, worker: usize, command: &[&str]) {
        let name = worker_name(worker);
        let volumes = vec![self.empty_dir(&name, "/nvme")];
        let pod = self.start(&name, volumes, operator::worker_variables(), command);
        self.workers[worker] = Some(pod);
    }

    /// Starts all workers.
    #[track_caller]
    pub(crate) fn start_workers(&mut self, command: &[&str]) {
        (0..self.workers.len()).for_each(|worker| self.start_worker(worker, command));
    }

    /// Restarts a worker that has died, as after its pod was deleted: with another address, and
    /// with empty volumes but for those that pods share.
    #[track_caller]
    pub(crate) fn replace_worker(&mut self, worker: usize, command: &[&str]) {
        let name = worker_name(worker);
        self.workers[worker] = None;
        fs::remove_dir_all(self.path(&name)).unwrap();
        self.start_worker(worker, command);
    }

    /// Starts the launcher.
    #[track_caller]
    pub(crate) fn start_launcher(&mut self, command: &[&str]) {
        let volumes = vec![Volume { source: self.path("mpi"), target: "/etc/mpi" }];
        self.launcher = None;
        let _ = fs::remove_dir_all(self.path(LAUNCHER)); // of the one before
        self.launcher =
            Some(self.start(LAUNCHER, volumes, operator::launcher_variables(), command));
    }

    /// Starts a pod, and adds it to DNS.
    #[track_caller]
    fn start(
        &mut self,
        name: &str,
        own_volumes: Vec<Volume>,
        mut variables: Vec<Variable>,
        command: &[&str],
    ) -> Pod {
        let port = self.network.connect();
        self.names.publish(name, &port.address);
        let volumes = [self.volumes(), vec![self.empty_dir(name, "/tmp")], own_volumes].concat();
        variables.extend(mpi::variables());
        variables.extend([
            Variable::new("POD_NAME", name),
            Variable::new("NODE_NAME", node_name(name)),
            Variable::new("LOCAL_CHECKPOINT_DIR", "/nvme"),
            Variable::new("SHARED_CHECKPOINT_DIR", "/shared"),
        ]);
        Pod::start(Spec {
            name,
            port,
            layer: &self.path("image"),
            root: &self.make_folder(&format!("{name}/root")),
            volumes,
            variables,
            command,
            log: self.path(&format!("{name}.log")),
        })
    }

    /// Returns the volumes of all pods.
    fn volumes(&self) -> Vec<Volume> {
        let binary = PathBuf::from(env!("CARGO_BIN_EXE_yardstick"));
        let of_all = [
            Volume { source: binary, target: "/usr/local/bin/yardstick" },
            Volume { source: self.path("ssh"), target: "/home/yardstick/.ssh" },
            Volume { source: self.path("names"), target: NAMES },
            Volume { source: self.path("results"), target: "/results" },
            Volume { source: self.path("shared"), target: "/shared" },
        ];
        [of_all.to_vec(), mpi::volumes()].concat()
    }

    /// A volume of one pod.
    fn empty_dir(&self, pod: &str, target: &'static str) -> Volume {
        let source = self.make_folder(&format!("{pod}{target}"));
        allow_all(&source);
        Volume { source, target }
    }

    /// Waits until every worker accepts connections, as a readiness probe does.
    #[track_caller]
    pub(crate) fn wait_for_ssh(&self) {
        for worker in self.workers.iter().flatten() {
            worker.wait_for_port(SSH_PORT);
        }
    }

    /// Waits until the run has committed a checkpoint where all pods see it.
    #[track_caller]
    pub(crate) fn wait_for_checkpoint(&self) {
        let has_committed = || self.checkpoints().any(|path| path.join("MANIFEST.json").exists());
        wait_until(has_committed, || format!("no checkpoint: {}", self.output()));
    }

    /// Waits until the launcher has started `mpirun`, whose ranks are not started yet.
    #[track_caller]
    pub(crate) fn wait_for_mpirun(&self) {
        let launcher = self.launcher.as_ref().unwrap();
        let has_started = || !launcher.running("mpirun", "--hostfile").is_empty();
        wait_until(has_started, || format!("no mpirun: {}", self.output()));
    }

    /// The folders of checkpoints of the run that all pods see.
    fn checkpoints(&self) -> impl Iterator<Item = PathBuf> {
        entries(&self.path("shared"))
            .chain([self.results().join("checkpoints")])
            .flat_map(|run| entries(&run))
    }

    /// Waits for the exit code of the launcher, which must be this.
    #[track_caller]
    pub(crate) fn expect_exit(&mut self, code: i32) {
        let found = self.launcher().exit_code();
        assert_eq!(found, code, "{}", self.output());
    }

    /// Fails unless no rank is left in any pod soon.
    #[track_caller]
    pub(crate) fn expect_no_rank(&self) {
        let survivors = || format!("{:#?} survive:\n{}", self.ranks(), self.output());
        wait_until(|| self.ranks().is_empty(), survivors);
    }

    /// Fails unless the launcher has printed all of these in one line.
    #[track_caller]
    pub(crate) fn expect_sentence(&mut self, parts: &[&str]) {
        let output = self.launcher().output();
        let has_all = |line: &str| parts.iter().all(|part| line.contains(part));
        assert!(output.lines().any(has_all), "no {parts:?} in:\n{output}");
    }

    /// Returns the output of all pods.
    pub(crate) fn output(&self) -> String {
        let pods = self.launcher.iter().chain(self.workers.iter().flatten());
        pods.map(|pod| format!("{}:\n{}\n", pod.name, pod.output())).collect()
    }

    /// Returns a worker that was started.
    pub(crate) fn worker(&mut self, worker: usize) -> &mut Pod {
        self.workers[worker].as_mut().unwrap()
    }

    /// The launcher, which was started.
    pub(crate) fn launcher(&mut self) -> &mut Pod {
        self.launcher.as_mut().unwrap()
    }

    /// The ranks in all pods.
    pub(crate) fn ranks(&self) -> Vec<Process> {
        let pods = self.workers.iter().flatten().chain(&self.launcher);
        pods.flat_map(Pod::ranks).collect()
    }

    /// The folder of the run.
    pub(crate) fn results(&self) -> PathBuf {
        self.path("results").join(RUN)
    }

    /// The record of the run, which has to be of its schema.
    #[track_caller]
    pub(crate) fn record(&self) -> Value {
        record(&self.results())
    }

    /// A worker's folder for temporary files.
    pub(crate) fn temporary_folder(&self, worker: usize) -> PathBuf {
        self.empty_dir(&worker_name(worker), "/tmp").source
    }

    /// Publishes a worker in DNS also by the name of another one, which is not started.
    pub(crate) fn give_second_name(&mut self, worker: usize, other: usize) {
        let address = self.worker(worker).port.address.clone();
        self.names.publish(&worker_name(other), &address);
    }

    /// A folder of the job on this machine.
    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn make_folder(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(&path).unwrap();
        path
    }
}

/// Name of the node that a pod is on: each is on one of its own.
pub(crate) fn node_name(pod: &str) -> String {
    format!("node-of-{pod}")
}

fn entries(folder: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    entries.flatten().map(|entry| entry.path())
}

fn allow_all(folder: &Path) {
    fs::set_permissions(folder, fs::Permissions::from_mode(0o1777)).unwrap();
}
