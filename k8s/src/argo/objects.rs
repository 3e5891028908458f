//! The parts of a WorkflowTemplate, `argoproj.io/v1alpha1`, that jobs use.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Container, LocalObjectReference, PodSecurityContext, Toleration, Volume,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Serialize;

/// WorkflowTemplate resource.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct WorkflowTemplate {
    pub(super) api_version: &'static str,
    pub(super) kind: &'static str,
    pub(super) metadata: ObjectMeta,
    pub(super) spec: WorkflowSpec,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct WorkflowSpec {
    pub(super) active_deadline_seconds: u64,
    pub(super) entrypoint: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) image_pull_secrets: Option<Vec<LocalObjectReference>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) node_selector: Option<BTreeMap<String, String>>,
    pub(super) on_exit: &'static str,
    pub(super) pod_metadata: PodMetadata,
    pub(super) security_context: PodSecurityContext,
    pub(super) service_account_name: &'static str,
    pub(super) synchronization: Synchronization,
    pub(super) templates: Vec<Template>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tolerations: Option<Vec<Toleration>>,
    pub(super) ttl_strategy: TtlStrategy,
    pub(super) volumes: Vec<Volume>,
}

#[derive(Debug, Serialize)]
pub(super) struct PodMetadata {
    pub(super) annotations: BTreeMap<String, String>,
    pub(super) labels: BTreeMap<String, String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct TtlStrategy {
    pub(super) seconds_after_completion: u64,
}

#[derive(Debug, Serialize)]
pub(super) struct Synchronization {
    pub(super) mutexes: [Named; 1],
}

#[derive(Debug, Serialize)]
pub(super) struct Named {
    pub(super) name: String,
}

#[derive(Debug, Serialize, Default)]
#[serde(rename_all = "camelCase")]
pub(super) struct Template {
    pub(super) name: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) automount_service_account_token: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) container: Option<Container>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) dag: Option<Dag>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) executor: Option<Executor>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) pod_spec_patch: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) resource: Option<Resource>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) service_account_name: Option<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Executor {
    pub(super) service_account_name: &'static str,
}

/// Action of kubectl on a manifest, and the conditions that end the wait for it.
#[derive(Debug, Serialize, Default)]
#[serde(rename_all = "camelCase")]
pub(super) struct Resource {
    pub(super) action: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) failure_condition: Option<&'static str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) flags: Vec<&'static str>,
    pub(super) manifest: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) set_owner_reference: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) success_condition: Option<&'static str>,
}

#[derive(Debug, Serialize)]
pub(super) struct Dag {
    pub(super) tasks: Vec<Task>,
}

#[derive(Debug, Serialize)]
pub(super) struct Task {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) depends: Option<String>,
    pub(super) name: &'static str,
    pub(super) template: &'static str,
}
