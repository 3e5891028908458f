//! Reading the weights of a model folder of transformers: our own export, or anyone's.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};

use models::config::Family;
use models::{Layout, ModelConfig};
use serde_json::Value;

use super::config_json;
use super::errors::import_error;
use super::file_names::{CONFIG, INDEX, WEIGHTS};
use super::safetensors_header::{self, Entry};
use super::tensor_mapping::{HfTensor, hf_tensors, prefix};
use super::tensor_reader::{BUFFER_BYTES, ElementType, TensorData, TensorReader};
use crate::failure::{Failure, Outcome};

/// A folder that holds every tensor of a model in its shape.
#[derive(Debug)]
pub(crate) struct Import {
    folder: PathBuf,
    files: Vec<WeightsFile>,
    /// Tensors by their name.
    tensors: BTreeMap<String, StoredTensor>,
}

#[derive(Debug)]
struct WeightsFile {
    path: PathBuf,
    file: File,
    data_start: u64,
}

/// Where a tensor is stored.
#[derive(Debug)]
struct StoredTensor {
    /// Index into [`Import::files`].
    file: usize,
    entry: Entry,
}

/// A tensor that was found by its name.
struct FoundTensor<'a> {
    name: &'a str,
    file: &'a WeightsFile,
    entry: &'a Entry,
}

impl Import {
    /// Opens a folder and checks its configuration and every tensor's name and shape.
    ///
    /// # Errors
    /// Exit code 2 naming the file and what is missing, unknown or of another size.
    pub(crate) fn open(folder: &Path, config: &ModelConfig) -> Outcome<Self> {
        let path = folder.join(CONFIG);
        config_json::check(config, read_json(&path)?)
            .map_err(|mismatch| import_error(&path, mismatch))?;
        let mut import =
            Self { folder: folder.to_owned(), files: Vec::new(), tensors: BTreeMap::new() };
        for path in weights_paths(folder)? {
            import.add(path)?;
        }
        import.check(config)?;
        Ok(import)
    }

    /// Adds the tensors of one file.
    fn add(&mut self, path: PathBuf) -> Outcome<()> {
        let mut file = File::open(&path).map_err(|error| import_error(&path, error))?;
        let header = safetensors_header::read(&path, &mut file)?;
        for (name, entry) in header.entries {
            let stored = StoredTensor { file: self.files.len(), entry };
            if self.tensors.insert(name.clone(), stored).is_some() {
                return Err(import_error(&path, format!("{name} is in another file as well")));
            }
        }
        self.files.push(WeightsFile { path, file, data_start: header.data_start });
        Ok(())
    }

    fn check(&self, config: &ModelConfig) -> Outcome<()> {
        let mut known = BTreeSet::new();
        let layout = Layout::new(config);
        for tensor in layout.tensors().iter().flat_map(|tensor| hf_tensors(config, tensor)) {
            let found = self.find(config, &tensor)?;
            found.check(&tensor)?;
            known.insert(found.name);
        }
        let is_unknown =
            |name: &&String| !known.contains(name.as_str()) && !is_unused(config, name);
        match self.tensors.keys().find(is_unknown) {
            None => Ok(()),
            Some(name) => {
                let path = &self.files[self.tensors[name].file].path;
                let error = format!("{name}: the model of this workload has no such tensor");
                Err(import_error(path, error))
            }
        }
    }

    /// Finds a tensor by its name, with or without the prefix.
    fn find(&self, config: &ModelConfig, tensor: &HfTensor) -> Outcome<FoundTensor<'_>> {
        let bare = tensor.name.strip_prefix(prefix(config)).unwrap_or(&tensor.name);
        let found = self.tensors.get_key_value(&tensor.name).or(self.tensors.get_key_value(bare));
        found
            .map(|(name, StoredTensor { file, entry })| FoundTensor {
                name,
                file: &self.files[*file],
                entry,
            })
            .ok_or_else(|| import_error(&self.folder, format!("no tensor {}", tensor.name)))
    }

    /// Fills the weights; the padding between tensors is not changed.
    ///
    /// # Errors
    /// Exit code 2 naming the file that cannot be read.
    pub(crate) fn load(
        &self,
        config: &ModelConfig,
        layout: &Layout,
        weights: &mut [f32],
    ) -> Outcome<()> {
        self.load_buffered(BUFFER_BYTES, config, layout, weights)
    }

    /// The same with a buffer of `buffer_bytes`.
    pub(super) fn load_buffered(
        &self,
        buffer_bytes: usize,
        config: &ModelConfig,
        layout: &Layout,
        weights: &mut [f32],
    ) -> Outcome<()> {
        let mut reader = TensorReader::new(buffer_bytes);
        for tensor in layout.tensors() {
            let weights = &mut weights[tensor.range.clone()];
            for tensor in hf_tensors(config, tensor) {
                let found = self.find(config, &tensor)?;
                let data = TensorData {
                    file: &found.file.file,
                    start: found.file.data_start + found.entry.data_offsets[0],
                    element_type: found.element_type()?,
                };
                let read = reader.read(&data, &tensor, &mut weights[tensor.elements()]);
                read.map_err(|error| found.error(error))?;
            }
        }
        Ok(())
    }
}

impl FoundTensor<'_> {
    fn error(&self, error: impl std::fmt::Display) -> Failure {
        import_error(&self.file.path, error)
    }

    /// Checks shape, type and size.
    fn check(&self, expected: &HfTensor) -> Outcome<()> {
        let Self { name, entry, .. } = self;
        if entry.shape != expected.shape {
            return Err(self.error(format!(
                "{name}: expected shape {:?}, found {:?}",
                expected.shape, entry.shape
            )));
        }
        let [start, end] = entry.data_offsets;
        let expected_bytes = self.element_type()?.size_bytes() * expected.elements().len();
        if end - start != expected_bytes as u64 {
            let found = end - start;
            let error = format!("{name}: expected {expected_bytes} bytes by shape, found {found}");
            return Err(self.error(error));
        }
        Ok(())
    }

    fn element_type(&self) -> Outcome<ElementType> {
        let Self { name, entry, .. } = self;
        ElementType::by_name(&entry.dtype).ok_or_else(|| {
            self.error(format!("{name}: expected type F32, BF16 or F16, found {}", entry.dtype))
        })
    }
}

/// What transformers saves in addition to weights: masks, RoPE's angles, a copy of a tied head.
fn is_unused(config: &ModelConfig, name: &str) -> bool {
    match config.family {
        Family::Gpt if name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") => true,
        _ if name == "lm_head.weight" => config.is_tied(),
        _ => name.ends_with("rotary_emb.inv_freq"),
    }
}

fn read_json(path: &Path) -> Outcome<Value> {
    let text = std::fs::read(path).map_err(|error| import_error(path, error))?;
    serde_json::from_slice(&text).map_err(|error| import_error(path, error))
}

/// The single file of weights, or the files that the index lists.
fn weights_paths(folder: &Path) -> Outcome<Vec<PathBuf>> {
    let single = folder.join(WEIGHTS);
    let index = folder.join(INDEX);
    if single.exists() || !index.exists() {
        return Ok(vec![single]);
    }
    let map = read_json(&index)?.get_mut("weight_map").map(Value::take).unwrap_or_default();
    let map: BTreeMap<String, String> = serde_json::from_value(map)
        .map_err(|error| import_error(&index, format!("weight_map: {error}")))?;
    let files: BTreeSet<String> = map.into_values().collect();
    if let Some(file) = files.iter().find(|file| Path::new(file).components().count() != 1) {
        return Err(import_error(&index, format!("{file}: expected a file of this folder")));
    }
    Ok(files.into_iter().map(|file| folder.join(file)).collect())
}
