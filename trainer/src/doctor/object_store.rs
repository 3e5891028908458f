//! Check of the object store of checkpoints: each node must reach it, and it must keep its
//! promises.

use std::time::{Duration, Instant, UNIX_EPOCH};

use checkpoint::remote::{Remote, RemoteOptions};
use launch::doctor::{CheckDesc, Finding, Group, Scope};
use record::files::IoError;

/// Size of the object that is written and read.
const BYTES: usize = 8 << 20;

/// Time for which a request is retried.
const RETRY_TIMEOUT: Duration = Duration::from_secs(8);

pub(super) const OBJECT_STORE: CheckDesc = CheckDesc {
    name: "object_store",
    group: Group::Storage,
    scope: Scope::Node,
    inspects: "checkpoint.object.path: 8 MiB are put, read and deleted; a conditional put \
               (If-None-Match) of an object that exists must be refused",
    thresholds: "fails if any of this fails, and if the store ignores the condition: two runs \
                 could then commit the same checkpoint",
    remedy: "check endpoint, credentials and network policy; use a store that honours \
             If-None-Match",
    fault: "tests/commands/doctor.rs: an_object_store_has_to_honour_conditions",
};

/// Puts, reads and deletes objects with names of their own.
pub(super) fn check_store(address: &str) -> Finding {
    let options = RemoteOptions { patience: RETRY_TIMEOUT, ..RemoteOptions::default() };
    match Remote::open_with(address, options).and_then(|remote| round_trip(&remote)) {
        Ok(finding) => finding,
        Err(error) => Finding::fail(error.to_string(), "put, get and delete"),
    }
}

fn round_trip(remote: &Remote) -> Result<Finding, IoError> {
    let now = UNIX_EPOCH.elapsed().unwrap_or_default().as_nanos();
    let key = format!("DOCTOR-{now:x}-{}-{}", record::machine::host_name(), std::process::id());
    let started = Instant::now();
    remote.put(&key, vec![7; BYTES])?;
    let put = started.elapsed();
    let started = Instant::now();
    let is_same = remote.read(&key, BYTES as u64)? == vec![7; BYTES];
    let read = started.elapsed();
    remote.delete(&key)?;
    let is_gone = !remote.exists(&key)?;
    let honours_condition = remote.honours_exclusive_put(&key)?;
    Ok(match (is_same && is_gone, honours_condition) {
        (false, _) => {
            Finding::fail("reads differ from earlier puts and deletes", "consistent reads")
        }
        (_, false) => Finding::fail("it ignores If-None-Match", "it refuses an object that exists"),
        _ => Finding::pass(format!("{} put, {} read", rate(put), rate(read))),
    })
}

fn rate(took: Duration) -> String {
    let mebibytes = BYTES as f64 / f64::from(1 << 20);
    format!("{:.0} MiB/s", mebibytes / took.as_secs_f64().max(1e-9))
}
