//! Export of a checkpoint's weights as a model folder that transformers loads.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufWriter, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use checkpoint::{Dtype, Memory, PartMut, SingleRank, Store, TensorBox};
use models::layout::Tensor;
use models::{Layout, ModelConfig};

use super::config_json;
use super::errors::{NEW_FOLDER, export_error};
use super::file_names::{CONFIG, WEIGHTS};
use super::safetensors_header::{self, Entry};
use super::staging_folder::StagingFolder;
use super::tensor_mapping::{HfTensor, hf_tensors, transpose};
use crate::checkpoints::state_map::weight_in_checkpoint;
use crate::failure::{Failure, Outcome};
use record::ExitCode;
use record::files::regular_file::create_anew;
use record::files::{self, Mode};

/// Result of an export.
#[derive(Debug)]
pub struct Exported {
    /// Number of steps that the weights were trained for.
    pub step: u64,
    pub tensors: usize,
    pub bytes: u64,
}

/// Writes the weights of one committed checkpoint to a new folder, completely or not at all.
///
/// One block at a time is in memory.
///
/// # Errors
/// Exit code 2 if the folder exists and is not empty, cannot be written, or another export is
/// writing to it; 6 if the checkpoint is not usable.
pub fn export(
    store: &Store,
    checkpoint: &str,
    config: &ModelConfig,
    out: &Path,
) -> Outcome<Exported> {
    if fs::read_dir(out).is_ok_and(|mut list| list.next().is_some()) || out.is_file() {
        return Err(export_error(out, format!("is not an empty folder\n  hint: {NEW_FOLDER}")));
    }
    // The complete folder is renamed to `out`, which works for an empty folder, but not for a link.
    let is_link = fs::symlink_metadata(out.components().as_path()).is_ok_and(|it| it.is_symlink());
    if out.file_name().is_none() || is_link || is_mount_point(out) {
        let error = format!("cannot be replaced by an export\n  hint: {NEW_FOLDER}");
        return Err(export_error(out, error));
    }
    let staging = StagingFolder::claim(out)?;
    let exported = Export { store, checkpoint, config, folder: staging.path() }.write();
    let published = exported.and_then(|exported| {
        staging.publish(out)?;
        Ok(exported)
    });
    if published.is_err() {
        let _ = fs::remove_dir_all(staging.path()); // the first error is returned
    }
    published
}

/// Returns whether a folder is a mount point, which a rename cannot replace.
pub(super) fn is_mount_point(out: &Path) -> bool {
    let parent = out.join("..");
    let device = |path: &Path| fs::metadata(path).map(|it| it.dev());
    device(out).is_ok_and(|own| device(&parent).is_ok_and(|parent| own != parent))
}

struct Export<'a> {
    store: &'a Store,
    checkpoint: &'a str,
    config: &'a ModelConfig,
    folder: &'a Path,
}

/// Entries of the header, and size of the data.
struct Contents {
    entries: BTreeMap<String, Entry>,
    bytes: u64,
}

impl Export<'_> {
    fn write(&self) -> Outcome<Exported> {
        let layout = Layout::new(self.config);
        let contents = self.contents(&layout);
        let metadata = BTreeMap::from([
            ("format", "pt".to_owned()),
            ("checkpoint", self.checkpoint.to_owned()),
        ]);
        let internal = |error| Failure::new(ExitCode::Internal, anyhow::Error::from(error));
        let header = safetensors_header::write(&metadata, &contents.entries).map_err(internal)?;
        let path = self.folder.join(WEIGHTS);
        let unwritable = |error| export_error(&path, error);
        let file = create_anew(&path, Mode::Umask).map_err(|error| unwritable(error.source))?;
        let mut file = BufWriter::new(file);
        file.write_all(&header).map_err(unwritable)?;
        let mut step = 0;
        for segment in layout.segments() {
            let tensors = &layout.tensors()[segment.tensors.clone()];
            let restored = self.restore(tensors)?;
            self.write_tensors(tensors, &restored.weights, &mut file).map_err(unwritable)?;
            step = restored.step;
        }
        let file = file.into_inner().map_err(|error| unwritable(error.into_error()))?;
        file.sync_all().map_err(unwritable)?;
        let text = serde_json::to_string_pretty(&config_json::write(self.config));
        let text = text.map_err(internal)? + "\n";
        // Also makes the names of both files durable.
        files::replace_with(&self.folder.join(CONFIG), text.as_bytes(), Mode::Umask)
            .map_err(|error| export_error(self.folder, error))?;
        Ok(Exported { step, tensors: contents.entries.len(), bytes: contents.bytes })
    }

    /// Returns the position of every tensor in the file, in the order of our layout.
    fn contents(&self, layout: &Layout) -> Contents {
        let mut entries = BTreeMap::new();
        let mut bytes = 0;
        for tensor in layout.tensors().iter().flat_map(|tensor| hf_tensors(self.config, tensor)) {
            let start = bytes;
            bytes += (size_of::<f32>() * tensor.elements().len()) as u64;
            let HfTensor { name, shape, .. } = tensor;
            let entry =
                Entry { dtype: safetensors::Dtype::F32, shape, data_offsets: [start, bytes] };
            entries.insert(name, entry);
        }
        Contents { entries, bytes }
    }

    /// Reads some tensors from the checkpoint, which verifies its digests.
    fn restore(&self, tensors: &[Tensor]) -> Outcome<Restored> {
        let mut weights: Vec<_> = tensors.iter().map(|t| vec![0.0_f32; t.range.len()]).collect();
        let bytes = weights.iter_mut().map(|of| bytemuck::cast_slice_mut(of.as_mut_slice()));
        let mut bytes: Vec<&mut [u8]> = bytes.collect();
        let part = |(tensor, data): (&Tensor, _)| {
            let name = weight_in_checkpoint(&tensor.name);
            PartMut { tensor: TensorBox::whole(&name, Dtype::F32, &tensor.shape), data }
        };
        let data = bytes.iter_mut().map(|bytes| -> &mut dyn Memory { bytes });
        let mut parts: Vec<_> = tensors.iter().zip(data).map(part).collect();
        let restored = self.store.restore(self.checkpoint, &mut parts, &SingleRank);
        let restored = restored.map_err(|error| Failure::new(ExitCode::Checkpoint, error))?;
        drop(parts);
        Ok(Restored { weights, step: restored.step })
    }

    fn write_tensors(
        &self,
        tensors: &[Tensor],
        weights: &[Vec<f32>],
        file: &mut impl Write,
    ) -> std::io::Result<()> {
        for (tensor, weights) in tensors.iter().zip(weights) {
            for tensor in hf_tensors(self.config, tensor) {
                let ours = &weights[tensor.elements()];
                if tensor.is_transposed {
                    let mut transposed = vec![0.0; ours.len()];
                    transpose(&mut transposed, ours, tensor.columns);
                    file.write_all(bytemuck::cast_slice(&transposed))?;
                } else {
                    file.write_all(bytemuck::cast_slice(ours))?;
                }
            }
        }
        Ok(())
    }
}

/// Tensors of a checkpoint.
struct Restored {
    /// Elements of each tensor.
    weights: Vec<Vec<f32>>,
    /// Step of the checkpoint.
    step: u64,
}
