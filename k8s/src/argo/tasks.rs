//! Order of the tasks of a workflow, and the tasks that a failed task stops.

use super::objects::{Dag, Task};
use crate::rendered::Job;

pub(super) const CONFIGURE: &str = "configure";
pub(super) const DOCTOR: &str = "doctor";
pub(super) const BASELINE: &str = "baseline";
pub(super) const TRAIN: &str = "train";
pub(super) const COLLECT: &str = "collect";
pub(super) const VERDICT: &str = "verdict";
/// Template that removes the MPIJob of doctor or training.
pub(super) const CLEAN_UP: &str = "clean-up";
/// Clean-up task before both: a terminated workflow leaves its job behind.
const BEGIN: &str = "begin";
/// Clean-up task between the two: pods of the doctor hold the GPUs that training needs.
const END_DOCTOR: &str = "end-doctor";

/// Builds the sequence of tasks. A failed run is collected, too, but not judged: Argo counts a task
/// that it skips after a failed task as failed, and with the last task the workflow.
pub(super) fn of(job: &Job) -> Dag {
    let workflow = &job.benchmark.workflow;
    let mut tasks = vec![Task { depends: None, name: CONFIGURE, template: CONFIGURE }];
    let mut then = |name, template| {
        let depends = tasks.last().map(|task| format!("{}.Succeeded", task.name));
        tasks.push(Task { depends, name, template });
    };
    then(BEGIN, CLEAN_UP);
    if !workflow.doctor.skip {
        then(DOCTOR, DOCTOR);
        then(END_DOCTOR, CLEAN_UP);
    }
    if workflow.reporting.records.is_some() {
        then(BASELINE, BASELINE);
    }
    then(TRAIN, TRAIN);
    let ended = ["Succeeded", "Failed", "Errored"].map(|state| format!("{TRAIN}.{state}"));
    let collect = Some(ended.join(" || "));
    let verdict = Some(format!("{TRAIN}.Succeeded && {COLLECT}.Succeeded"));
    tasks.push(Task { depends: collect, name: COLLECT, template: COLLECT });
    tasks.push(Task { depends: verdict, name: VERDICT, template: VERDICT });
    Dag { tasks }
}
