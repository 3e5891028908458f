//! Checks of a benchmark file that its types cannot express: values that Kubernetes and the
//! operator would refuse, some of them only in an event that nobody reads.

use std::path::Path;

use record::benchmark_file;
use record::text::{is_remote, redacted};

use super::{Benchmark, Nvme, Platform, PodSecurity, Workflow, Workload};
use crate::error::{Error, Result};
use crate::paths::{DCGM_PORT, SSH_PORT};
use crate::{names, paths};
use record::text::duration;

/// Maximum number of ranks of a node, as large as the operator's `slots` has ever been.
const RANKS_PER_NODE_MAX: u32 = 1024;

/// Maximum number of nodes of a job, and of spare workers: far above any cluster.
const NODES_MAX: u32 = 1 << 16;

/// Names of variables that the job sets itself.
const RESERVED: [&str; 6] = [
    "POD_NAME",
    "NODE_NAME",
    "LOCAL_CHECKPOINT_DIR",
    "SHARED_CHECKPOINT_DIR",
    "YARDSTICK_CACHE_DIR",
    benchmark_file::VARIABLE,
];

/// Fails with the key, the value found and the accepted values, unless `is_valid`.
fn require(is_valid: bool, key: &str, found: impl ToString, expected: &str) -> Result<()> {
    if is_valid { Ok(()) } else { Err(Error::invalid(key, found, expected)) }
}

/// Checks an optional quantity.
fn quantity(key: &str, found: Option<&String>) -> Result<()> {
    let expected = "a quantity above 0 such as 500m, 4 or 64Gi";
    let Some(found) = found else { return Ok(()) };
    require(names::is_quantity(found), key, found, expected)
}

/// Checks the optional name of an object.
fn object(key: &str, found: Option<&String>) -> Result<()> {
    let Some(found) = found else { return Ok(()) };
    require(names::is_subdomain(found), key, found, names::SUBDOMAIN)
}

/// Checks the name of a resource of a device plugin.
fn resource(key: &str, found: &str) -> Result<()> {
    require(names::is_resource(found), key, found, names::QUALIFIED)
}

/// Checks the key of a label or of a taint.
fn qualified(key: &str, found: &str) -> Result<()> {
    require(names::is_qualified(found), key, found, names::QUALIFIED)
}

/// Checks a path that Kubernetes must accept as the path of a volume.
fn absolute(key: &str, found: &str) -> Result<()> {
    let is_valid = found.starts_with('/') && !found.split('/').any(|part| part == "..");
    require(is_valid, key, found, "an absolute path")
}

/// Returns whether a path is a folder, or is below it.
fn nests(folder: &str, path: &str) -> bool {
    Path::new(path).starts_with(folder)
}

impl Benchmark {
    /// Checks every value, and the values that depend on each other.
    pub(super) fn check(&self) -> Result<()> {
        self.workload.check()?;
        self.workflow.check()?;
        self.platform.check()?;
        self.check_image()?;
        self.check_linger()?;
        self.check_pod_security()
    }

    /// Requires a linger time below the grace period, after which ranks are killed.
    fn check_linger(&self) -> Result<()> {
        let reporting = &self.workflow.reporting;
        let grace = self.workload.grace;
        let is_valid = reporting.metrics_port == 0 || reporting.metrics_linger < grace;
        let expected = format!("less than workload.grace, {}", duration::format(grace));
        let found = duration::format(reporting.metrics_linger);
        require(is_valid, "workflow.reporting.metrics_linger", found, &expected)
    }

    fn check_image(&self) -> Result<()> {
        let key = if self.is_on_gpus() { "workflow.images.cuda" } else { "workflow.images.cpu" };
        let image = self.image();
        let is_valid = !image.is_empty() && !image.contains(char::is_whitespace);
        require(is_valid, key, format!("{image:?}"), "an image, as in registry/name@sha256:...")
    }

    /// Refuses options that Pod Security `restricted` would reject, but only at pod creation.
    fn check_pod_security(&self) -> Result<()> {
        let Platform { pod_security, host_network, root, ref host_folders, .. } = self.platform;
        let is_host_path = matches!(self.workflow.storage.nvme, Some(Nvme::HostPath(_)));
        let needs = [
            (host_network, "platform.host_network"),
            (root, "platform.root"),
            (!host_folders.is_empty(), "platform.host_folders"),
            (is_host_path, "workflow.storage.nvme.host_path"),
        ];
        let needed = needs.into_iter().find(|(is_set, _)| *is_set);
        let Some((_, key)) = needed.filter(|_| pod_security == PodSecurity::Restricted) else {
            return Ok(());
        };
        let expected = format!(
            "privileged, because of {key}, and a namespace that allows it \
             (k8s/components/privileged)"
        );
        require(false, "platform.pod_security", "restricted", &expected)
    }
}

impl Workload {
    fn check(&self) -> Result<()> {
        let expected = format!("from 1 to {NODES_MAX}");
        let is_valid = (1..=NODES_MAX).contains(&self.nodes);
        require(is_valid, "workload.nodes", self.nodes, &expected)?;
        let expected = format!("at most {NODES_MAX}");
        require(self.spares <= NODES_MAX, "workload.spares", self.spares, &expected)?;
        let key = match (self.ranks_per_node, self.gpus_per_node) {
            (Some(_), None) => "workload.ranks_per_node",
            (None, Some(_)) => "workload.gpus_per_node",
            (ranks, _) => {
                let expected = "either this, or workload.gpus_per_node for a rank on each GPU";
                let found = ranks.map_or("none".to_owned(), |ranks| ranks.to_string());
                return require(false, "workload.ranks_per_node", found, expected);
            }
        };
        let ranks = self.ranks_per_node();
        let is_valid = (1..=RANKS_PER_NODE_MAX).contains(&ranks);
        require(is_valid, key, ranks, &format!("from 1 to {RANKS_PER_NODE_MAX}"))?;
        let limit = self.time_limit;
        let is_whole = limit.is_none_or(|limit| limit.as_secs() > 0 && limit.subsec_nanos() == 0);
        let found = limit.map_or(String::new(), duration::format);
        require(is_whole, "workload.time_limit", found, "whole seconds, at least 1s")
    }
}

impl Workflow {
    fn check(&self) -> Result<()> {
        let is_label = names::is_label(&self.namespace);
        require(is_label, "workflow.namespace", &self.namespace, names::LABEL)?;
        object("workflow.service_account", self.service_account.as_ref())?;
        object("workflow.images.pull_secret", self.images.pull_secret.as_ref())?;
        let storage = &self.storage;
        object("workflow.storage.results", Some(&storage.results))?;
        object("workflow.storage.shared", storage.shared.as_ref())?;
        object("workflow.storage.object_secret", storage.object_secret.as_ref())?;
        if let Some(url) = &storage.object {
            let expected = "s3://, gs:// or az:// BUCKET/PREFIX";
            require(is_remote(url), "workflow.storage.object", redacted(url), expected)?;
        }
        storage.nvme.as_ref().map_or(Ok(()), Nvme::check)?;
        self.check_port()
    }

    fn check_port(&self) -> Result<()> {
        let port = self.reporting.metrics_port;
        let is_free = i32::from(port) != SSH_PORT && port != DCGM_PORT;
        let is_valid = port == 0 || port >= 1024 && is_free;
        let expected = format!(
            "from 1024 on, but neither {SSH_PORT}, sshd's, nor {DCGM_PORT}, that of DCGM's \
             exporter; 0: none"
        );
        require(is_valid, "workflow.reporting.metrics_port", port, &expected)
    }
}

impl Nvme {
    fn check(&self) -> Result<()> {
        match self {
            Self::HostPath(path) => absolute("workflow.storage.nvme.host_path", path),
            Self::Claim(claim) => {
                object("workflow.storage.nvme.claim.storage_class", Some(&claim.storage_class))?;
                quantity("workflow.storage.nvme.claim.size", Some(&claim.size))
            }
            Self::EmptyDir(size) => quantity("workflow.storage.nvme.empty_dir", Some(size)),
        }
    }
}

impl Platform {
    fn check(&self) -> Result<()> {
        quantity("platform.cpu", self.cpu.as_ref())?;
        quantity("platform.memory", self.memory.as_ref())?;
        quantity("platform.gpu_memory", self.gpu_memory.as_ref())?;
        quantity("platform.ephemeral_storage", self.ephemeral_storage.as_ref())?;
        quantity("platform.hugepages_2mi", self.hugepages_2mi.as_ref())?;
        quantity("platform.shared_memory", Some(&self.shared_memory))?;
        object("platform.priority_class", self.priority_class.as_ref())?;
        object("platform.runtime_class", self.runtime_class.as_ref())?;
        object("platform.kueue_queue", self.kueue_queue.as_ref())?;
        resource("platform.gpu_resource", &self.gpu_resource)?;
        self.check_huge_pages()?;
        if let Some(rdma) = &self.rdma {
            resource("platform.rdma.resource", &rdma.resource)?;
            require(rdma.count > 0, "platform.rdma.count", rdma.count, "at least 1")?;
        }
        // Two sshd would share one port of a node: the second worker would never be ready.
        let is_alone = self.one_pod_per_node || !self.host_network;
        let expected = "true with platform.host_network";
        require(is_alone, "platform.one_pod_per_node", false, expected)?;
        self.check_placement()?;
        self.check_environment()?;
        self.check_annotations()?;
        self.check_host_folders()
    }

    /// Requires memory or CPU too: the API server refuses pods that request only huge pages.
    fn check_huge_pages(&self) -> Result<()> {
        let Some(found) = &self.hugepages_2mi else { return Ok(()) };
        let is_valid = self.cpu.is_some() || self.memory.is_some();
        let expected = "platform.cpu or platform.memory beside it";
        require(is_valid, "platform.hugepages_2mi", found, expected)
    }

    fn check_placement(&self) -> Result<()> {
        if let Some(rack) = &self.rack {
            qualified("platform.rack.topology_key", &rack.topology_key)?;
        }
        if let Some(zone) = &self.zone {
            require(names::is_label_value(zone), "platform.zone", zone, names::LABEL_VALUE)?;
        }
        for (label, value) in &self.node_labels {
            qualified("platform.node_labels", label)?;
            let key = format!("platform.node_labels.{label}");
            require(names::is_label_value(value), &key, value, names::LABEL_VALUE)?;
        }
        for toleration in &self.tolerations {
            qualified("platform.tolerations.key", &toleration.key)?;
            let effect = toleration.effect.as_deref().unwrap_or("NoSchedule");
            let is_valid = ["NoSchedule", "PreferNoSchedule", "NoExecute"].contains(&effect);
            let expected = "NoSchedule, PreferNoSchedule or NoExecute";
            require(is_valid, "platform.tolerations.effect", effect, expected)?;
        }
        Ok(())
    }

    fn check_environment(&self) -> Result<()> {
        for (name, value) in &self.environment {
            let is_valid = names::is_variable(name) && !RESERVED.contains(&name.as_str());
            let expected = format!("a name that the job does not set itself: {}", names::VARIABLE);
            require(is_valid, "platform.environment", name, &expected)?;
            let key = format!("platform.environment.{name}");
            let expected = "a URL without user, password and query: take it from a Secret";
            let shown = redacted(value);
            require(shown == *value, &key, &shown, expected)?;
        }
        Ok(())
    }

    fn check_annotations(&self) -> Result<()> {
        self.annotations.keys().try_for_each(|key| qualified("platform.annotations", key))
    }

    fn check_host_folders(&self) -> Result<()> {
        for (path, folder) in &self.host_folders {
            absolute("platform.host_folders", path)?;
            absolute(&format!("platform.host_folders.{path}"), folder)?;
            let require_apart = |hidden: Option<&str>| {
                let expected = format!("a path apart from {}", hidden.unwrap_or_default());
                require(hidden.is_none(), "platform.host_folders", path, &expected)
            };
            // A mounted folder must not hide another one, nor be hidden by it.
            let others = self.host_folders.keys().map(String::as_str).filter(|it| it != path);
            let mut mounted = paths::OF_PODS.into_iter().chain(others);
            require_apart(mounted.find(|other| nests(path, other) || nests(other, path)))?;
            require_apart(paths::OF_IMAGE.into_iter().find(|folder| nests(path, folder)))?;
        }
        Ok(())
    }
}
