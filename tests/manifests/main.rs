//! Manifests that clusters accept: rendered examples, and everything below `k8s/`.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod api_server;
mod cluster;
mod examples;
mod monitoring;
mod network;
mod objects;
mod operator;
mod pod_security;
mod schemas;
mod test_cluster;
#[path = "../kubernetes/wait.rs"]
mod wait;
