//! Kubernetes objects as values: their kind and name, and the pods that are made of them.

use std::path::Path;

use serde_json::{Value, json};

/// Object, and the file or folder that it is from.
#[derive(Debug, Clone)]
pub(crate) struct Object {
    pub(crate) from: String,
    pub(crate) value: Value,
}

/// The objects of a stream of YAML documents.
pub(crate) fn parse(from: &Path, yaml: &str) -> Vec<Object> {
    let from = from.strip_prefix(crate::examples::top()).unwrap_or(from).display().to_string();
    let values: Vec<Value> =
        serde_saphyr::from_multiple(yaml).unwrap_or_else(|error| panic!("{from}: {error}"));
    values.into_iter().map(|value| Object { from: from.clone(), value }).collect()
}

/// A text of a value, empty if there is none.
pub(crate) fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or("")
}

/// The elements of a list, none if there is none.
pub(crate) fn list<'a>(value: &'a Value, pointer: &str) -> &'a [Value] {
    value.pointer(pointer).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

impl Object {
    pub(crate) fn kind(&self) -> &str {
        text(&self.value, "/kind")
    }

    pub(crate) fn namespace(&self) -> &str {
        text(&self.value, "/metadata/namespace")
    }

    /// Returns the prefix of a message about it.
    pub(crate) fn label(&self) -> String {
        format!("{}: {} {}", self.from, self.kind(), text(&self.value, "/metadata/name"))
    }

    /// The objects that a workflow creates.
    pub(crate) fn created(&self) -> Vec<Self> {
        let templates = list(&self.value, "/spec/templates").iter();
        let resources = templates.filter(|template| text(template, "/resource/action") == "create");
        let manifests = resources.map(|template| text(template, "/resource/manifest"));
        manifests.flat_map(|manifest| parse(Path::new(&self.from), manifest)).collect()
    }

    /// The pods of a workflow's steps that are containers, as Argo makes them.
    pub(crate) fn steps(&self) -> Vec<Value> {
        let spec = &self.value["spec"];
        let templates = list(spec, "/templates").iter();
        let containers = templates.filter_map(|template| template.get("container"));
        let pod = |container: &Value| {
            json!({ "spec": { "containers": [container], "volumes": spec["volumes"],
                "securityContext": spec["securityContext"] } })
        };
        containers.map(pod).collect()
    }

    /// The service accounts of a workflow, its steps and their executors.
    pub(crate) fn accounts(&self) -> Vec<&str> {
        let templates = list(&self.value, "/spec/templates").iter();
        let of_steps = templates.flat_map(|template| {
            let executor = text(template, "/executor/serviceAccountName");
            [text(template, "/serviceAccountName"), executor]
        });
        let all = of_steps.chain([text(&self.value, "/spec/serviceAccountName")]);
        all.filter(|name| !name.is_empty() && *name != "default").collect()
    }

    /// The templates of pods in it.
    pub(crate) fn pod_templates(&self) -> Vec<&Value> {
        let places: &[&str] = match self.kind() {
            "MPIJob" => {
                let launcher = "/spec/mpiReplicaSpecs/Launcher/template";
                &[launcher, "/spec/mpiReplicaSpecs/Worker/template"]
            }
            "TrainingRuntime" => {
                let node = "/spec/template/spec/replicatedJobs/0/template/spec/template";
                &[node, "/spec/template/spec/replicatedJobs/1/template/spec/template"]
            }
            "Pod" => &[""],
            "DaemonSet" | "Deployment" | "Job" => &["/spec/template"],
            _ => &[],
        };
        places.iter().map(|place| self.value.pointer(place).expect("a pod template")).collect()
    }
}
