//! Weights from a folder of transformers: ours, or anybody's.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};

use models::config::Family;
use models::{Layout, ModelConfig};
use serde_json::Value;

use super::header::{self, Entry};
use super::pieces::{Piece, pieces, prefix};
use super::stored::{PART_BYTES, Reader, Stored};
use super::{CONFIG, INDEX, WEIGHTS, description};
use crate::failure::{Failure, Outcome};

/// A folder that was found to hold every tensor of a model in its shape.
#[derive(Debug)]
pub(crate) struct Import {
    folder: PathBuf,
    shards: Vec<Shard>,
    /// By their name: which shard, and where in it.
    found: BTreeMap<String, (usize, Entry)>,
}

#[derive(Debug)]
struct Shard {
    path: PathBuf,
    file: File,
    data_start: u64,
}

pub(super) fn refuse(path: &Path, what: impl std::fmt::Display) -> Failure {
    Failure::usage(format!("--init-from: {}: {what}", path.display()))
}

impl Import {
    /// Opens a folder and checks its description and every tensor's name and shape.
    ///
    /// # Errors
    /// Exit code 2 naming the file and what is missing, unknown or of another size.
    pub(crate) fn open(folder: &Path, config: &ModelConfig) -> Outcome<Self> {
        let path = folder.join(CONFIG);
        description::check(config, read_json(&path)?).map_err(|what| refuse(&path, what))?;
        let mut import =
            Self { folder: folder.to_owned(), shards: Vec::new(), found: BTreeMap::new() };
        for path in shard_paths(folder)? {
            import.add(path)?;
        }
        import.check(config)?;
        Ok(import)
    }

    /// Adds the tensors of one file.
    fn add(&mut self, path: PathBuf) -> Outcome<()> {
        let mut file = File::open(&path).map_err(|error| refuse(&path, error))?;
        let header = header::read(&path, &mut file)?;
        let shard = self.shards.len();
        for (name, entry) in header.entries {
            if self.found.insert(name.clone(), (shard, entry)).is_some() {
                return Err(refuse(&path, format!("{name} is in another file as well")));
            }
        }
        self.shards.push(Shard { path, file, data_start: header.data_start });
        Ok(())
    }

    fn check(&self, config: &ModelConfig) -> Outcome<()> {
        let mut known = BTreeSet::new();
        let layout = Layout::new(config);
        for piece in layout.tensors().iter().flat_map(|tensor| pieces(config, tensor)) {
            let (name, shard, entry) = self.find(config, &piece)?;
            let path = &self.shards[shard].path;
            if entry.shape != piece.shape {
                let (expected, found) = (&piece.shape, &entry.shape);
                let what = format!("{name}: expected shape {expected:?}, found {found:?}");
                return Err(refuse(path, what));
            }
            let stored = self.shards[shard].stored(name, entry)?;
            let [start, end] = entry.data_offsets;
            if end - start != (stored.size_bytes() * piece.elements().len()) as u64 {
                return Err(refuse(
                    path,
                    format!("{name}: {} bytes do not fit its shape", end - start),
                ));
            }
            known.insert(name);
        }
        let unknown = self
            .found
            .keys()
            .find(|name| !known.contains(name.as_str()) && !is_unused(config, name));
        match unknown {
            None => Ok(()),
            Some(name) => {
                let path = &self.shards[self.found[name].0].path;
                Err(refuse(path, format!("{name}: the model of this workload has no such tensor")))
            }
        }
    }

    /// A tensor by its name with the prefix or without.
    fn find(&self, config: &ModelConfig, piece: &Piece) -> Outcome<(&str, usize, &Entry)> {
        let bare = piece.name.strip_prefix(prefix(config)).unwrap_or(&piece.name);
        let found = self.found.get_key_value(&piece.name).or(self.found.get_key_value(bare));
        found
            .map(|(name, (shard, entry))| (name.as_str(), *shard, entry))
            .ok_or_else(|| refuse(&self.folder, format!("no tensor {}", piece.name)))
    }

    /// Fills the weights; what lies between the tensors stays as it is.
    ///
    /// # Errors
    /// Exit code 2 naming the file that cannot be read.
    pub(crate) fn load(
        &self,
        config: &ModelConfig,
        layout: &Layout,
        weights: &mut [f32],
    ) -> Outcome<()> {
        self.load_by(PART_BYTES, config, layout, weights)
    }

    /// The same with so many bytes of a file in memory at a time.
    pub(super) fn load_by(
        &self,
        part_bytes: usize,
        config: &ModelConfig,
        layout: &Layout,
        weights: &mut [f32],
    ) -> Outcome<()> {
        let mut reader = Reader::new(part_bytes);
        for tensor in layout.tensors() {
            let weights = &mut weights[tensor.range.clone()];
            for piece in pieces(config, tensor) {
                let (name, shard, entry) = self.find(config, &piece)?;
                let shard = &self.shards[shard];
                let stored = shard.stored(name, entry)?;
                let source = (&shard.file, shard.data_start + entry.data_offsets[0]);
                let read = reader.read(source, stored, &piece, &mut weights[piece.elements()]);
                read.map_err(|error| refuse(&shard.path, error))?;
            }
        }
        Ok(())
    }
}

impl Shard {
    /// The type of a tensor's elements.
    fn stored(&self, name: &str, entry: &Entry) -> Outcome<Stored> {
        let refused = || format!("{name}: {} is no F32, BF16 or F16", entry.dtype);
        Stored::named(&entry.dtype).ok_or_else(|| refuse(&self.path, refused()))
    }
}

/// What transformers saves besides the weights: masks, RoPE's angles, a copy of a tied head.
fn is_unused(config: &ModelConfig, name: &str) -> bool {
    match config.family {
        Family::Gpt if name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") => true,
        _ if name == "lm_head.weight" => config.is_tied(),
        _ => name.ends_with("rotary_emb.inv_freq"),
    }
}

fn read_json(path: &Path) -> Outcome<Value> {
    let text = std::fs::read(path).map_err(|error| refuse(path, error))?;
    serde_json::from_slice(&text).map_err(|error| refuse(path, error))
}

/// One file, or those that the index names.
fn shard_paths(folder: &Path) -> Outcome<Vec<PathBuf>> {
    let (single, index) = (folder.join(WEIGHTS), folder.join(INDEX));
    if single.exists() || !index.exists() {
        return Ok(vec![single]);
    }
    let map = read_json(&index)?.get_mut("weight_map").map(Value::take).unwrap_or_default();
    let map: BTreeMap<String, String> = serde_json::from_value(map)
        .map_err(|error| refuse(&index, format!("weight_map: {error}")))?;
    let files: BTreeSet<String> = map.into_values().collect();
    if let Some(file) = files.iter().find(|file| Path::new(file).components().count() != 1) {
        return Err(refuse(&index, format!("{file}: expected a file of this folder")));
    }
    Ok(files.into_iter().map(|file| folder.join(file)).collect())
}
