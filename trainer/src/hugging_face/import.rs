//! Import of weights from a model folder of transformers: our own export, or anyone's.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use models::config::Family;
use models::layout::Tensor;
use models::{Layout, ModelConfig};
use record::files::regular_file;
use serde_json::Value;

use super::config_json;
use super::errors::import_error;
use super::file_names::{CONFIG, INDEX, WEIGHTS};
use super::safetensors_header::{self, Entry};
use super::tensor_mapping::{HEAD, HfTensor, hf_tensors, prefix, token_table};
use super::tensor_reader::{BUFFER_BYTES, ElementType, TensorData, TensorReader};
use crate::failure::{Failure, Outcome};
use record::limits::CONFIG_BYTES_MAX;
use record::text::in_user_words;

/// Bytes of each tensor that [`Import::sample`] reads.
const SAMPLE_BYTES: usize = 4096;

/// Folder that holds every tensor of a model in its shape.
#[derive(Debug)]
pub(crate) struct Import {
    folder: PathBuf,
    files: Vec<WeightsFile>,
    /// Tensors by name.
    tensors: BTreeMap<String, StoredTensor>,
}

#[derive(Debug)]
struct WeightsFile {
    path: PathBuf,
    file: File,
    data_start: u64,
}

/// Location of a stored tensor.
#[derive(Debug)]
struct StoredTensor {
    /// Index into [`Import::files`].
    file: usize,
    entry: Entry,
}

/// Tensor that was found by name.
struct FoundTensor<'a> {
    name: &'a str,
    file: &'a WeightsFile,
    entry: &'a Entry,
}

impl Import {
    /// Opens a folder and checks its configuration and every tensor's name and shape.
    ///
    /// # Errors
    /// Exit code 2, naming the file and what is missing, unknown or of another size.
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
            self.check_tied(config, &tensor, &found)?;
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

    /// Finds a tensor by its name, with or without the prefix. A token table that is also the head
    /// may have been saved under the name of the head only.
    fn find(&self, config: &ModelConfig, tensor: &HfTensor) -> Outcome<FoundTensor<'_>> {
        let bare = tensor.name.strip_prefix(prefix(config)).unwrap_or(&tensor.name);
        self.named(&tensor.name)
            .or_else(|| self.named(bare))
            .or_else(|| self.named(HEAD).filter(|_| is_tied_table(config, tensor)))
            .ok_or_else(|| import_error(&self.folder, format!("no tensor {}", tensor.name)))
    }

    fn named(&self, name: &str) -> Option<FoundTensor<'_>> {
        let (name, StoredTensor { file, entry }) = self.tensors.get_key_value(name)?;
        Some(FoundTensor { name, file: &self.files[*file], entry })
    }

    /// Checks a head that was saved in addition to the token table: if this model ties them, both
    /// must have the same elements.
    fn check_tied(
        &self,
        config: &ModelConfig,
        tensor: &HfTensor,
        table: &FoundTensor<'_>,
    ) -> Outcome<()> {
        let head = self.named(HEAD).filter(|head| head.name != table.name);
        let Some(head) = head.filter(|_| is_tied_table(config, tensor)) else { return Ok(()) };
        head.check(tensor)?;
        if is_same(table, &head, tensor)? {
            return Ok(());
        }
        let own_head = match config.family {
            Family::Gpt => "no workload of this family has a head of its own",
            Family::Llama(_) => {
                "if the model has a head of its own, set tie_word_embeddings to false in \
                 config.json, and model.tied=false"
            }
        };
        Err(head.error(format!(
            "{HEAD}: expected the elements of {}, as the two are tied (tie_word_embeddings), found \
             others\n  hint: {own_head}; if it is not used, remove {HEAD} from the file",
            table.name
        )))
    }

    /// Returns a digest of the names, shapes and types of all tensors, and of their first elements:
    /// ranks that read different parts of the weights learn from it if their folders are of
    /// different models or steps.
    ///
    /// # Errors
    /// Exit code 2, naming the file that cannot be read.
    pub(crate) fn sample(&self) -> Outcome<blake3::Hash> {
        let mut sample = blake3::Hasher::new();
        let mut buffer = [0; SAMPLE_BYTES];
        for (name, StoredTensor { file, entry }) in &self.tensors {
            let WeightsFile { path, file, data_start } = &self.files[*file];
            let Entry { dtype, shape, data_offsets: [start, end] } = entry;
            let part = &mut buffer[..SAMPLE_BYTES.min((end - start) as usize)];
            file.read_exact_at(part, data_start + start)
                .map_err(|error| import_error(path, error))?;
            sample.update(format!("{name} {dtype:?} {shape:?}\n").as_bytes()).update(part);
        }
        Ok(sample.finalize())
    }

    /// Returns a reader of the weights of a model that was checked.
    pub(crate) fn reader<'a>(&'a self, config: &'a ModelConfig) -> ImportReader<'a> {
        self.reader_buffered(BUFFER_BYTES, config)
    }

    /// Returns a reader with a buffer of `buffer_bytes`.
    pub(super) fn reader_buffered<'a>(
        &'a self,
        buffer_bytes: usize,
        config: &'a ModelConfig,
    ) -> ImportReader<'a> {
        ImportReader { import: self, config, reader: TensorReader::new(buffer_bytes) }
    }
}

/// Reader of any elements of a model's tensors.
#[derive(Debug)]
pub(crate) struct ImportReader<'a> {
    import: &'a Import,
    config: &'a ModelConfig,
    reader: TensorReader,
}

impl ImportReader<'_> {
    /// Reads elements of one of our tensors, from its element `first` on.
    ///
    /// # Errors
    /// Exit code 2, naming the file that cannot be read.
    pub(crate) fn read(&mut self, tensor: &Tensor, first: usize, ours: &mut [f32]) -> Outcome<()> {
        for theirs in hf_tensors(self.config, tensor) {
            let part = theirs.elements();
            let start = part.start.max(first);
            let end = part.end.min(first + ours.len());
            if start < end {
                let found = self.import.find(self.config, &theirs)?;
                let ours = &mut ours[start - first..end - first];
                found.read(&mut self.reader, &theirs, start - part.start, ours)?;
            }
        }
        Ok(())
    }
}

impl FoundTensor<'_> {
    fn error(&self, error: impl std::fmt::Display) -> Failure {
        import_error(&self.file.path, error)
    }

    /// Checks shape and type.
    fn check(&self, expected: &HfTensor) -> Outcome<()> {
        let Self { name, entry, .. } = self;
        if entry.shape != expected.shape {
            return Err(self.error(format!(
                "{name}: expected shape {:?}, found {:?}",
                expected.shape, entry.shape
            )));
        }
        self.element_type().map(drop)
    }

    fn element_type(&self) -> Outcome<ElementType> {
        let Self { name, entry, .. } = self;
        ElementType::of(entry.dtype).ok_or_else(|| {
            self.error(format!("{name}: expected type F32, BF16 or F16, found {:?}", entry.dtype))
        })
    }

    /// Reads elements of our tensor, from its element `first` on.
    fn read(
        &self,
        reader: &mut TensorReader,
        tensor: &HfTensor,
        first: usize,
        ours: &mut [f32],
    ) -> Outcome<()> {
        let start = self.file.data_start + self.entry.data_offsets[0];
        let element_type = self.element_type()?;
        let data = TensorData { file: &self.file.file, start, element_type };
        reader.read(&data, tensor, first, ours).map_err(|error| self.error(error))
    }
}

/// Returns whether a tensor is the token table of a model that also uses it as head.
fn is_tied_table(config: &ModelConfig, tensor: &HfTensor) -> bool {
    config.is_tied() && tensor.name == token_table(config)
}

/// Returns whether two tensors are equal, with elements rounded to both types.
fn is_same(one: &FoundTensor<'_>, other: &FoundTensor<'_>, tensor: &HfTensor) -> Outcome<bool> {
    const PART: usize = BUFFER_BYTES / size_of::<f32>();
    let mut reader = TensorReader::new(BUFFER_BYTES);
    let types = [one.element_type()?, other.element_type()?];
    let round = |element: f32| types.iter().fold(element, |element, kind| kind.round(element));
    let is_equal = |(one, other): (&f32, &f32)| {
        let [one, other] = [round(*one), round(*other)];
        one == other || one.is_nan() && other.is_nan()
    };
    let mut elements_of_one = vec![0.0; PART];
    let mut elements_of_other = vec![0.0; PART];
    let elements = tensor.elements().len();
    for first in (0..elements).step_by(PART) {
        let count = PART.min(elements - first);
        one.read(&mut reader, tensor, first, &mut elements_of_one[..count])?;
        other.read(&mut reader, tensor, first, &mut elements_of_other[..count])?;
        let mut pairs = elements_of_one[..count].iter().zip(&elements_of_other[..count]);
        if !pairs.all(is_equal) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns whether transformers saves a tensor in addition to weights: masks, RoPE's angles, a copy
/// of a tied head.
fn is_unused(config: &ModelConfig, name: &str) -> bool {
    match config.family {
        Family::Gpt if name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") => true,
        _ if name == HEAD => config.is_tied(),
        _ => name.ends_with("rotary_emb.inv_freq"),
    }
}

fn read_json(path: &Path) -> Outcome<Value> {
    let text = regular_file::read_named(path, CONFIG_BYTES_MAX);
    let text = text.map_err(|error| import_error(path, error.source))?;
    serde_json::from_slice(&text)
        .map_err(|error| import_error(path, in_user_words(&error.to_string())))
}

/// Returns the single file of weights, or the files that the index lists.
fn weights_paths(folder: &Path) -> Outcome<Vec<PathBuf>> {
    let single = folder.join(WEIGHTS);
    let index = folder.join(INDEX);
    if single.exists() || !index.exists() {
        return Ok(vec![single]);
    }
    let map = read_json(&index)?.get_mut("weight_map").map(Value::take).unwrap_or_default();
    let map: BTreeMap<String, String> = serde_json::from_value(map)
        .map_err(|error| format!("weight_map: {}", in_user_words(&error.to_string())))
        .map_err(|error| import_error(&index, error))?;
    let files: BTreeSet<String> = map.into_values().collect();
    if let Some(file) = files.iter().find(|file| Path::new(file).components().count() != 1) {
        return Err(import_error(&index, format!("{file}: expected a file of this folder")));
    }
    Ok(files.into_iter().map(|file| folder.join(file)).collect())
}
