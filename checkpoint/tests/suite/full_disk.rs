//! Full disk, or a limit on file sizes: a clean failure on all ranks, the space is free again, and
//! training continues.

use std::path::Path;
use std::process::Output;

use checkpoint::{Error, NoFailpoints, Part, Peers, SingleRank, Store, TensorBox};
use serde_json::Value;

use crate::support::*;

/// Saves so many bytes from one rank.
fn save_bytes(store: &Store, step: u64, bytes: usize, peers: &dyn Peers) -> Result<String, Error> {
    let name = format!("of rank {}", peers.rank());
    let data = vec![step as u8; bytes];
    let tensor = TensorBox::whole(&name, checkpoint::Dtype::U8, &[bytes]);
    let parts = [Part { tensor, data: &data }];
    let request = request(step, 1, Value::Null);
    store.save(&request, &parts, peers, &NoFailpoints).map(|report| report.checkpoint)
}

/// Fails several times on rank 1 alone; the good one before stays, a later save works.
fn fail_and_continue(root: &Path, small: usize, large: usize, reason: &str) {
    let store = open(root).with_options(checkpoint::Options::default());
    let good = on_ranks(2, |peers| save_bytes(&store, 10, small, peers).unwrap());
    for step in [20, 21, 22] {
        let results = on_ranks(2, |peers| {
            save_bytes(&store, step, if peers.rank() == 1 { large } else { small }, peers)
        });
        for result in results {
            match result {
                Err(Error::SaveFailed { failures, .. }) => {
                    // Rank 0 may find the same disk full.
                    let failure = failures.last().expect("at least one");
                    assert_eq!(failure.rank, 1, "{failures:?}");
                    let file = "r00001-000.safetensors.tmp: cannot write";
                    assert!(failure.reason.contains(file), "{failures:?}");
                    assert!(failures.iter().all(|failure| failure.reason.contains(reason)));
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(names(&store), good[..1], "nothing is left, the good one stays");
        assert!(store.verify(&good[0]).unwrap().problems.is_empty());
    }
    let next = on_ranks(2, |peers| save_bytes(&store, 30, small, peers).unwrap());
    assert_eq!(store.apply_retention(1, 1, &NoFailpoints).removed, good[..1]);
    assert_eq!(names(&store), next[..1]);
    assert!(store.resume(&mut [], &SingleRank).unwrap().is_some_and(|found| found.step == 30));
}

#[test]
fn a_limit_on_file_sizes() {
    if let Some(root) = child_argument() {
        return fail_and_continue(Path::new(&root), 10_000, 200_000, "File too large");
    }
    let folder = tempfile::tempdir().unwrap();
    let script = r#"trap '' XFSZ; ulimit -f 200; exec "$0" "$@""#; // 200 blocks of 512 bytes
    let root = folder.path().to_str().unwrap();
    let test = "full_disk::a_limit_on_file_sizes";
    let output = child(&["sh", "-c", script], test, root).output().unwrap();
    assert_passed(&output);
}

fn assert_passed(output: &Output) {
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && stdout.contains("1 passed"), "{output:?}");
}

#[test]
fn no_space_left_on_the_device() {
    if let Some(root) = child_argument() {
        return fail_and_continue(Path::new(&root), 100_000, 3_000_000, "No space left");
    }
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().to_str().unwrap();
    // Its own namespaces: the mount vanishes with the child, and needs no root.
    let script = format!(r#"mount -t tmpfs -o size=1m tmpfs {root} && exec "$0" "$@""#);
    let unprivileged = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", &script];
    let privileged = ["unshare", "--mount", "sh", "-c", &script];
    let wrapper =
        if rustix::process::geteuid().is_root() { &privileged[..] } else { &unprivileged };
    let test = "full_disk::no_space_left_on_the_device";
    assert_passed(&child(wrapper, test, root).output().unwrap());
}
