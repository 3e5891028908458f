//! Strict schemas: a key that the API server does not know is an error, at any depth.

use std::collections::BTreeMap;
use std::path::Path;

use jsonschema::Validator;
use serde_json::{Map, Value, json};

use crate::examples::{files, top};
use crate::objects::{Object, text};

/// Kubernetes' own objects, by `group/version/kind`; and those of operators.
#[derive(Debug)]
pub(crate) struct Schemas {
    core: Value,
    validators: BTreeMap<String, Validator>,
}

/// The version of Kubernetes whose objects jobs are made for.
const KUBERNETES: &str = "v1.34.0-local-strict";

impl Schemas {
    /// Kubernetes' own, from the wheel kubernetes-validate.
    pub(crate) fn of_kubernetes() -> Self {
        let library = top().join(".venv-kubernetes/lib");
        let python = std::fs::read_dir(&library).unwrap_or_else(|error| {
            panic!("{}: {error}: run scripts/setup.sh test", library.display())
        });
        let python = python.flatten().next().unwrap().path();
        let folder = python.join("site-packages/kubernetes_validate/kubernetes-json-schema");
        let file = folder.join(KUBERNETES).join("_definitions.json");
        let core: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
        Self { core: core["$defs"].clone(), validators: BTreeMap::new() }
    }

    /// Adds those of operators: CustomResourceDefinitions in a folder.
    pub(crate) fn with_operators(mut self, folder: &Path) -> Self {
        for file in files(folder, "yaml") {
            let definition: Value =
                serde_saphyr::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
            let spec = &definition["spec"];
            for version in spec["versions"].as_array().unwrap() {
                let mut schema = version["schema"]["openAPIV3Schema"].clone();
                refuse_unknown_keys(&mut schema);
                let (group, kind) = (text(spec, "/group"), text(spec, "/names/kind"));
                let name = format!("{group}/{}/{kind}", text(version, "/name"));
                self.validators.insert(name, jsonschema::validator_for(&schema).unwrap());
            }
        }
        self
    }

    /// Returns the faults of an object, and of the objects that it embeds.
    pub(crate) fn violations(&mut self, object: &Object) -> Vec<String> {
        let name = format!("{}/{}", text(&object.value, "/apiVersion"), object.kind());
        if !self.validators.contains_key(&name) {
            let Some(definition) = self.definition(object) else {
                return vec![format!("{}: no schema of {name}", object.label())];
            };
            let validator = self.validator(&definition);
            self.validators.insert(name.clone(), validator);
        }
        let mut found = violations(&self.validators[&name], &object.value, object);
        // Operators embed the pods of the Kubernetes that they were built with.
        for (kind, value) in object.embedded() {
            let definition = format!("io.k8s.{kind}");
            if !self.validators.contains_key(&definition) {
                let validator = self.validator(&definition);
                self.validators.insert(definition.clone(), validator);
            }
            found.extend(violations(&self.validators[&definition], value, object));
        }
        found
    }

    /// The name of the definition of one of Kubernetes' own objects.
    fn definition(&self, object: &Object) -> Option<String> {
        let version = text(&object.value, "/apiVersion");
        let (group, version) = version.split_once('/').unwrap_or(("", version));
        let wanted = json!({ "group": group, "version": version, "kind": object.kind() });
        let definitions = self.core.as_object().unwrap();
        let found = definitions.iter().find(|(_, schema)| {
            let kinds = schema["x-kubernetes-group-version-kind"].as_array();
            kinds.is_some_and(|kinds| kinds.contains(&wanted))
        });
        found.map(|(name, _)| name.clone())
    }

    fn validator(&self, definition: &str) -> Validator {
        let schema = json!({ "$ref": format!("#/$defs/{definition}"), "$defs": self.core });
        jsonschema::validator_for(&schema).unwrap()
    }
}

impl Object {
    /// Parts that are Kubernetes' own, with the names of their definitions.
    fn embedded(&self) -> Vec<(&'static str, &Value)> {
        // A pod has a schema of its own.
        let templates = self.pod_templates().into_iter().filter(|_| self.kind() != "Pod");
        let mut parts: Vec<_> =
            templates.map(|value| ("api.core.v1.PodTemplateSpec", value)).collect();
        let metadata = self.value.get("metadata");
        parts.extend(metadata.map(|value| ("apimachinery.pkg.apis.meta.v1.ObjectMeta", value)));
        parts
    }
}

fn violations(validator: &Validator, value: &Value, object: &Object) -> Vec<String> {
    let label = object.label();
    let errors = validator.iter_errors(value);
    errors.map(|error| format!("{label}: {}: {error}", error.instance_path())).collect()
}

/// Closes every object of a schema that lists its keys, as the API server does with
/// `--validate=strict`.
fn refuse_unknown_keys(schema: &mut Value) {
    let Value::Object(map) = schema else { return };
    let is_open = map.get("x-kubernetes-preserve-unknown-fields") == Some(&json!(true));
    if map.contains_key("properties") && !map.contains_key("additionalProperties") && !is_open {
        map.insert("additionalProperties".to_owned(), json!(false));
    }
    for key in ["items", "additionalProperties"] {
        map.get_mut(key).into_iter().for_each(refuse_unknown_keys);
    }
    let properties = map.get_mut("properties").and_then(Value::as_object_mut);
    properties.into_iter().flat_map(Map::values_mut).for_each(refuse_unknown_keys);
}
