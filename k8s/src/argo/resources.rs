//! Tasks that create an MPIJob and wait for it, or remove it.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Serialize;

use super::objects::{Resource, Template};
use super::tasks::{CLEAN_UP, DOCTOR, TRAIN};
use crate::error::Result;
use crate::mpijob::MpiJob;
use crate::rendered::Job;
use crate::yaml::document;
use crate::{launcher, mpijob};

/// Builds the templates of these tasks.
///
/// # Errors
/// Exit code 1, should a job not be serializable.
pub(super) fn of(job: &Job) -> Result<Vec<Template>> {
    let mut all = Vec::new();
    if !job.benchmark.workflow.doctor.skip {
        let checked = mpijob::running(job, launcher::doctor(job));
        all.push(template(DOCTOR, create(&checked)?));
    }
    all.push(template(TRAIN, create(&mpijob::of(job))?));
    all.push(template(CLEAN_UP, remove(job)?));
    Ok(all)
}

fn template(name: &'static str, resource: Resource) -> Template {
    Template { name, resource: Some(resource), ..Template::default() }
}

/// Creates the MPIJob, and waits for its launcher.
fn create(created: &MpiJob) -> Result<Resource> {
    Ok(Resource {
        action: "create",
        failure_condition: Some("status.replicaStatuses.Launcher.failed > 0"),
        manifest: document(created)?,
        set_owner_reference: Some(true),
        success_condition: Some("status.replicaStatuses.Launcher.succeeded > 0"),
        ..Resource::default()
    })
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Reference {
    api_version: &'static str,
    kind: &'static str,
    metadata: ObjectMeta,
}

/// Removes the MPIJob, if there is one, and waits until its pods are gone: the pods of the next
/// MPIJob have the same names and need the same GPUs.
fn remove(job: &Job) -> Result<Resource> {
    let metadata = ObjectMeta {
        name: Some(job.name().to_owned()),
        namespace: Some(job.benchmark.workflow.namespace.clone()),
        ..ObjectMeta::default()
    };
    let reference = Reference { api_version: mpijob::API_VERSION, kind: mpijob::KIND, metadata };
    Ok(Resource {
        action: "delete",
        flags: vec!["--cascade=foreground"],
        manifest: document(&reference)?,
        ..Resource::default()
    })
}
