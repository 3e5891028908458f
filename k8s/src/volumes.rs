//! Volumes of pods, and their mounts in containers.

use k8s_openapi::api::core::v1::{
    ConfigMapVolumeSource, EmptyDirVolumeSource, EphemeralVolumeSource, HostPathVolumeSource,
    PersistentVolumeClaimSpec, PersistentVolumeClaimTemplate, PersistentVolumeClaimVolumeSource,
    Volume, VolumeMount, VolumeResourceRequirements,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::benchmark::{Benchmark, Nvme, NvmeClaim};
use super::paths;
use super::rendered::Job;

/// A volume and its mount in a container.
#[derive(Debug)]
pub(super) struct Mounted {
    pub(super) volume: Volume,
    pub(super) mount: VolumeMount,
}

/// Builds a volume of this name, mounted at this path.
fn mounted(name: &str, path: &str, source: Volume) -> Mounted {
    Mounted {
        volume: Volume { name: name.to_owned(), ..source },
        mount: VolumeMount {
            name: name.to_owned(),
            mount_path: path.to_owned(),
            ..VolumeMount::default()
        },
    }
}

fn read_only(mounted: Mounted) -> Mounted {
    let mount = VolumeMount { read_only: Some(true), ..mounted.mount };
    Mounted { mount, ..mounted }
}

/// Volumes of the launcher.
pub(super) fn of_launcher(job: &Job) -> Vec<Mounted> {
    common(job)
}

/// Volumes of a worker.
pub(super) fn of_worker(job: &Job) -> Vec<Mounted> {
    let Benchmark { workflow, platform, .. } = &job.benchmark;
    let memory = empty_dir(Some("Memory"), Some(&platform.shared_memory));
    let nvme = workflow.storage.nvme.as_ref();
    let mut all = common(job);
    all.push(mounted("shared-memory", paths::SHARED_MEMORY, memory));
    all.extend(nvme.map(|nvme| mounted("nvme", paths::NVME, on_node(nvme))));
    all.extend(platform.host_folders.iter().enumerate().map(|(index, (path, folder))| {
        read_only(mounted(&format!("host-{index}"), path, host_path(folder)))
    }));
    all
}

/// Volumes of a workflow task: its inputs, and its writable folders.
pub(super) fn of_step(job: &Job) -> Vec<Mounted> {
    let storage = &job.benchmark.workflow.storage;
    let results = mounted("results", paths::RESULTS, claim(&storage.results));
    vec![results, files(job), mounted("tmp", paths::TEMPORARY, empty_dir(None, None))]
}

/// The results, the shared tier, the job's files, and a folder for sockets and caches.
fn common(job: &Job) -> Vec<Mounted> {
    let storage = &job.benchmark.workflow.storage;
    let mut all = vec![mounted("results", paths::RESULTS, claim(&storage.results))];
    all.extend(storage.shared.as_ref().map(|name| mounted("shared", paths::SHARED, claim(name))));
    all.push(files(job));
    all.push(mounted("tmp", paths::TEMPORARY, empty_dir(None, None)));
    all
}

/// Volume of the frozen benchmark and the workload file.
fn files(job: &Job) -> Mounted {
    read_only(mounted("job", paths::JOB, config_map(&job.config_map_name())))
}

fn claim(name: &str) -> Volume {
    let source =
        PersistentVolumeClaimVolumeSource { claim_name: name.to_owned(), ..Default::default() };
    Volume { persistent_volume_claim: Some(source), ..Volume::default() }
}

fn config_map(name: &str) -> Volume {
    let source =
        ConfigMapVolumeSource { name: name.to_owned(), ..ConfigMapVolumeSource::default() };
    Volume { config_map: Some(source), ..Volume::default() }
}

fn empty_dir(medium: Option<&str>, size: Option<&str>) -> Volume {
    let source = EmptyDirVolumeSource {
        medium: medium.map(str::to_owned),
        size_limit: size.map(|size| Quantity(size.to_owned())),
    };
    Volume { empty_dir: Some(source), ..Volume::default() }
}

fn on_node(nvme: &Nvme) -> Volume {
    match nvme {
        Nvme::HostPath(path) => host_path(path),
        Nvme::Claim(claim) => ephemeral(claim),
        Nvme::EmptyDir(size) => empty_dir(None, Some(size)),
    }
}

/// Folder that must exist: a folder that the kubelet creates would belong to root.
fn host_path(path: &str) -> Volume {
    let source =
        HostPathVolumeSource { path: path.to_owned(), type_: Some("Directory".to_owned()) };
    Volume { host_path: Some(source), ..Volume::default() }
}

fn ephemeral(claim: &NvmeClaim) -> Volume {
    let requests = [("storage".to_owned(), Quantity(claim.size.clone()))].into();
    let spec = PersistentVolumeClaimSpec {
        access_modes: Some(vec!["ReadWriteOnce".to_owned()]),
        storage_class_name: Some(claim.storage_class.clone()),
        resources: Some(VolumeResourceRequirements { requests: Some(requests), limits: None }),
        ..PersistentVolumeClaimSpec::default()
    };
    let template = PersistentVolumeClaimTemplate { metadata: None, spec };
    let source = EphemeralVolumeSource { volume_claim_template: Some(template) };
    Volume { ephemeral: Some(source), ..Volume::default() }
}
