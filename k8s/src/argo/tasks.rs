//! In which order the tasks of a workflow run, and what one that fails ends.

use super::objects::{Dag, Task};
use crate::rendered::Job;

pub(super) const CONFIGURE: &str = "configure";
pub(super) const DOCTOR: &str = "doctor";
pub(super) const BASELINE: &str = "baseline";
pub(super) const TRAIN: &str = "train";
pub(super) const COLLECT: &str = "collect";
pub(super) const VERDICT: &str = "verdict";
/// The template that removes the MPIJob of doctor or training.
pub(super) const CLEAN_UP: &str = "clean-up";
/// Its task before both: a workflow that was terminated has left its job.
const BEGIN: &str = "begin";
/// Its task between the two: pods of the doctor have the GPUs that training needs.
const END_DOCTOR: &str = "end-doctor";

/// One after the other. A run that failed is collected, too, and is not judged: Argo counts a task
/// that it leaves out as failed where one before it did, and with the last task the workflow.
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
