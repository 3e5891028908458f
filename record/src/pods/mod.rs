//! `attempts[].pods`: start times of the pods of an attempt, from their status in the output of
//! `kubectl get pods -o json` or `kubectl get mpijobs,pods -o json`.
//!
//! Times of the API server have a resolution of one second.

mod status;

use std::collections::BTreeSet;
use std::path::Path;

use crate::attempt::{Attempt, PodTimes};
use crate::files::regular_file;
use crate::limits::PODS_BYTES_MAX;
use crate::text::in_user_words;
use status::{Item, List, Time};

/// Snapshot of the pods of a namespace, of any jobs.
#[derive(Debug)]
pub struct PodList {
    items: Vec<Item>,
}

impl PodList {
    /// Reads a list of pods.
    ///
    /// # Errors
    /// A sentence about a file that is not a list of pods.
    pub fn read(file: &Path) -> Result<Self, String> {
        let expected = |error: &dyn std::fmt::Display| {
            let file = file.display();
            format!("{file}: expected what `kubectl get pods -o json` prints: {error}")
        };
        let bytes = regular_file::read_named(file, PODS_BYTES_MAX);
        let bytes = bytes.map_err(|error| expected(&error.source))?;
        let parsed = serde_json::from_slice(&bytes);
        let List { items } =
            parsed.map_err(|error| expected(&in_user_words(&error.to_string())))?;
        Ok(Self { items })
    }

    /// Returns the only job that has pods in the list.
    pub fn only_job(&self) -> Option<&str> {
        let jobs: BTreeSet<_> = self.items.iter().filter_map(Item::job_of_pod).collect();
        jobs.first().copied().filter(|_| jobs.len() == 1)
    }

    /// Fills in the pod times of a job's attempts that lack them, from the pods in the list. A pod
    /// belongs to the first attempt that began after the pod had started: the replacement of a lost
    /// pod belongs to the next attempt. Pods that had started by `since`, a Unix time in
    /// milliseconds, belong to earlier runs of the job.
    pub fn fill_in(&self, job: &str, attempts: &mut [Attempt], mut since: i64) {
        for attempt in attempts {
            let until = attempt.started_unix_ms.cast_signed();
            if attempt.pods.is_none() {
                attempt.pods = self.times(job, since, until);
            }
            since = until;
        }
    }

    /// Times of the pods of a job that started between these Unix times in milliseconds.
    fn times(&self, job: &str, since: i64, until: i64) -> Option<PodTimes> {
        let is_within = |time: Time| (since..until).contains(&time.timestamp_millis());
        let is_own =
            |item: &&Item| item.job_of_pod() == Some(job) && item.started().is_some_and(is_within);
        let pods: Vec<&Item> = self.items.iter().filter(is_own).collect();
        let created = pods.iter().map(|pod| pod.created()).min()?;
        let queued = self.items.iter().find(|item| item.is_job(job)).map(Item::created);
        let queued = queued.filter(|queued| queued.timestamp_millis() >= since);
        let workers: Vec<_> = pods.iter().copied().filter(|pod| !pod.is_launcher()).collect();
        if workers.is_empty() {
            return None; // they are gone, and the launcher's start is not the longest
        }
        let sandbox = |pod: &Item| pod.when("PodReadyToStartContainers");
        Some(PodTimes {
            queued_seconds: seconds(queued, Some(created)),
            scheduled_seconds: longest(&pods, |pod| {
                seconds(Some(pod.created()), pod.when("PodScheduled"))
            }),
            sandbox_seconds: longest(&pods, |pod| seconds(pod.when("PodScheduled"), sandbox(pod))),
            image_seconds: longest(&pods, |pod| {
                seconds(sandbox(pod).or(pod.when("PodScheduled")), pod.started())
            }),
            ssh_ready_seconds: longest(&workers, |pod| seconds(pod.started(), pod.when("Ready"))),
        })
    }
}

fn seconds(from: Option<Time>, to: Option<Time>) -> Option<f64> {
    let between = to? - from?;
    let seconds = between.num_milliseconds() as f64 / 1e3;
    (seconds >= 0.0).then_some(seconds) // else clocks differ
}

/// Longest part over all pods; `None` if it is unknown for one of them.
fn longest(pods: &[&Item], part: impl Fn(&Item) -> Option<f64>) -> Option<f64> {
    let parts: Option<Vec<f64>> = pods.iter().map(|pod| part(pod)).collect();
    parts?.into_iter().reduce(f64::max)
}

#[cfg(test)]
mod tests;
