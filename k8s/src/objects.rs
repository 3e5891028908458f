//! The objects of a job as YAML.

use k8s_openapi::api::core::v1::ConfigMap;

use super::error::Result;
use super::format::Format;
use super::rendered::Job;
use super::yaml::document;
use super::{argo, metadata, mpijob, network, paths, trainjob};

impl Job {
    /// Renders the objects of the job as YAML documents, in the order in which they are needed.
    ///
    /// # Errors
    /// Exit code 1, should one of them not be serializable.
    pub fn to_yaml(&self) -> Result<String> {
        let mut documents = vec![document(&self.config_map())?, document(&network::policy(self))?];
        match self.format() {
            Format::Mpijob => documents.push(document(&mpijob::of(self))?),
            Format::Trainjob => {
                documents.push(document(&trainjob::runtime(self))?);
                documents.push(document(&trainjob::of(self))?);
            }
            Format::Argo => documents.push(document(&argo::of(self)?)?),
        }
        Ok(documents.concat())
    }

    /// ConfigMap of the frozen benchmark, and the workload file beside it.
    fn config_map(&self) -> ConfigMap {
        let mut data = metadata::map([(paths::BENCHMARK_FILE, self.frozen.as_str())]);
        data.extend(self.file.iter().map(|file| (file.name.clone(), file.text.clone())));
        ConfigMap {
            metadata: metadata::of_object(self, &self.config_map_name()),
            data: Some(data),
            immutable: Some(true),
            ..ConfigMap::default()
        }
    }
}
