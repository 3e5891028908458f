//! DNS of the cluster: a file in which all pods look names up, and that is replaced.

use std::fs;
use std::path::PathBuf;

use crate::operator::host;

/// The names of pods.
#[derive(Debug)]
pub(crate) struct Names {
    /// Has the file, and is mounted in pods.
    folder: PathBuf,
    known: Vec<Address>,
}

#[derive(Debug)]
struct Address {
    pod: String,
    address: String,
}

impl Names {
    /// Creates the names of no pod, in an empty folder.
    pub(crate) fn new(folder: PathBuf) -> Self {
        Self { folder, known: Vec::new() }
    }

    /// Sets the address of a pod.
    pub(crate) fn publish(&mut self, pod: &str, address: &str) {
        self.known.retain(|known| known.pod != pod);
        self.known.push(Address { pod: pod.to_owned(), address: address.to_owned() });
        let new = self.folder.join("new");
        let lines: String = self.known.iter().map(Address::line).collect();
        fs::write(&new, format!("127.0.0.1 localhost\n{lines}")).unwrap();
        fs::rename(new, self.folder.join("hosts")).unwrap();
    }
}

impl Address {
    fn line(&self) -> String {
        let Self { pod, address } = self;
        format!("{address} {} {pod}\n", host(pod))
    }
}
