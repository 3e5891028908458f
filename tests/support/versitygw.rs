//! VersityGW, an independent S3 server, over a temporary folder.

use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use tempfile::TempDir;

use crate::ports::free_port;

/// A server with one bucket. Ends when dropped.
#[derive(Debug)]
pub struct VersityGw {
    process: Child,
    port: u16,
    folder: TempDir,
}

impl VersityGw {
    /// Starts the program that `YARDSTICK_VERSITYGW` names; `None` where it names none.
    pub fn start() -> Option<Self> {
        let program = std::env::var_os("YARDSTICK_VERSITYGW")?;
        let folder = tempfile::tempdir().unwrap();
        let [data, metadata] = ["data", "metadata"].map(|name| folder.path().join(name));
        for new in [&data, &data.join("bucket"), &metadata] {
            std::fs::create_dir(new).unwrap();
        }
        let port = free_port();
        let address = format!("127.0.0.1:{port}");
        let mut command = Command::new(program);
        command.args(["--access", "test", "--secret", "test-secret", "--port", &address]);
        command.args(["--quiet", "posix", "--sidecar"]).args([metadata, data]);
        let process = command.stdout(Stdio::null()).spawn().unwrap();
        let server = Self { process, port, folder };
        server.await_start()
    }

    fn await_start(mut self) -> Option<Self> {
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            assert_eq!(self.process.try_wait().unwrap(), None, "it has ended");
            sleep(Duration::from_millis(20));
        }
        Some(self)
    }

    /// Settings of a client, and that no proxy of the environment is used.
    pub fn settings(&self) -> Vec<(String, String)> {
        let endpoint = format!("http://127.0.0.1:{}", self.port);
        let settings = [
            ("AWS_ENDPOINT_URL", &*endpoint),
            ("AWS_ACCESS_KEY_ID", "test"),
            ("AWS_SECRET_ACCESS_KEY", "test-secret"),
            ("AWS_REGION", "us-east-1"),
            ("AWS_PROXY_URL", "http://127.0.0.1:9"),
            ("AWS_PROXY_EXCLUDES", "127.0.0.1"),
        ];
        settings.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec()
    }
}

impl VersityGw {
    /// Number of uploads in parts that are neither completed nor aborted: it has a folder of each,
    /// in one of the object.
    pub fn open_uploads(&self) -> usize {
        let all = self.folder.path().join("data/bucket/.sgwtmp/multipart");
        let folders = |path: &Path| match std::fs::read_dir(path) {
            Ok(entries) => entries.map(|entry| entry.unwrap().path()).collect(),
            Err(_) => Vec::new(),
        };
        let of_objects = folders(&all).into_iter().filter(|path| path.is_dir());
        of_objects.map(|object| folders(&object).iter().filter(|path| path.is_dir()).count()).sum()
    }
}

impl Drop for VersityGw {
    fn drop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}
