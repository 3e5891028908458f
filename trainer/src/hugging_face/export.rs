//! Writing a checkpoint's weights as a folder that transformers loads.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use checkpoint::{Alone, Dtype, PartMut, Store, TensorBox};
use models::layout::Segment;
use models::{Layout, ModelConfig};

use super::header::{self, Entry};
use super::partial::Partial;
use super::pieces::{Piece, pieces, transpose};
use super::{CONFIG, WEIGHTS, description};
use crate::failure::{ExitCode, Failure, Outcome};
use crate::persist::weight_in_checkpoint;
use crate::record::atomic;

/// What was written.
#[derive(Debug)]
pub(crate) struct Exported {
    /// Steps that the weights have seen.
    pub(crate) step: u64,
    pub(crate) tensors: usize,
    pub(crate) bytes: u64,
}

/// Writes the weights of one committed checkpoint to a new folder: all of it, or nothing.
///
/// One block at a time is in memory.
///
/// # Errors
/// Exit code 2 when the folder is there and not empty, cannot be written, or is just being
/// exported to; 6 when the checkpoint is not usable.
pub(crate) fn export(
    store: &Store,
    checkpoint: &str,
    config: &ModelConfig,
    out: &Path,
) -> Outcome<Exported> {
    if fs::read_dir(out).is_ok_and(|mut list| list.next().is_some()) || out.is_file() {
        return Err(refuse(out, format!("is not an empty folder\n  hint: {NEW_FOLDER}")));
    }
    // A whole folder gets the name at the end: it can be that of an empty folder, but no link's.
    let is_link = fs::symlink_metadata(out.components().as_path()).is_ok_and(|it| it.is_symlink());
    if out.file_name().is_none() || is_link || is_mounted(out) {
        return Err(refuse(out, format!("cannot be replaced by an export\n  hint: {NEW_FOLDER}")));
    }
    let partial = Partial::take(out)?;
    let exported = Export { store, checkpoint, config, folder: &partial.path }.write();
    let published = exported.and_then(|exported| {
        partial.become_folder(out)?;
        Ok(exported)
    });
    if published.is_err() {
        let _ = fs::remove_dir_all(&partial.path); // the first failure is the one to tell
    }
    published
}

/// Whether a folder is where another file system begins: nothing can be put in its place.
pub(super) fn is_mounted(out: &Path) -> bool {
    let parent = out.join("..");
    let device = |path: &Path| fs::metadata(path).map(|it| it.dev());
    device(out).is_ok_and(|own| device(&parent).is_ok_and(|parent| own != parent))
}

/// What can always be written.
pub(super) const NEW_FOLDER: &str = "name a folder that is not there";

pub(super) fn refuse(path: &Path, error: impl std::fmt::Display) -> Failure {
    Failure::usage(format!("--out {}: {error}", path.display()))
}

struct Export<'a> {
    store: &'a Store,
    checkpoint: &'a str,
    config: &'a ModelConfig,
    folder: &'a Path,
}

impl Export<'_> {
    fn write(&self) -> Outcome<Exported> {
        let layout = Layout::new(self.config);
        let (entries, bytes) = self.entries(&layout);
        let metadata = BTreeMap::from([
            ("format", "pt".to_owned()),
            ("checkpoint", self.checkpoint.to_owned()),
        ]);
        let internal = |error| Failure::new(ExitCode::Internal, anyhow::Error::from(error));
        let header = header::write(&metadata, &entries).map_err(internal)?;
        let path = self.folder.join(WEIGHTS);
        let told = |error| refuse(&path, error);
        let mut file = BufWriter::new(File::create(&path).map_err(told)?);
        file.write_all(&header).map_err(told)?;
        let mut step = 0;
        for segment in layout.segments() {
            let (weights, restored_step) = self.restore(&layout, segment)?;
            self.write_segment(&layout, segment, &weights, &mut file).map_err(told)?;
            step = restored_step;
        }
        file.into_inner().map_err(|error| told(error.into_error()))?.sync_all().map_err(told)?;
        let text = serde_json::to_string_pretty(&description::describe(self.config));
        let text = text.map_err(internal)? + "\n";
        // Makes the names of both files durable as well.
        atomic::write(&self.folder.join(CONFIG), text.as_bytes())
            .map_err(|error| refuse(self.folder, error))?;
        Ok(Exported { step, tensors: entries.len(), bytes })
    }

    /// Every tensor's place in the file, in the order of our layout, and the bytes of all.
    fn entries(&self, layout: &Layout) -> (BTreeMap<String, Entry>, u64) {
        let mut entries = BTreeMap::new();
        let mut end = 0;
        for piece in layout.tensors().iter().flat_map(|tensor| pieces(self.config, tensor)) {
            let start = end;
            end += (size_of::<f32>() * piece.elements().len()) as u64;
            let Piece { name, shape, .. } = piece;
            let (dtype, data_offsets) = ("F32".to_owned(), [start, end]);
            entries.insert(name, Entry { dtype, shape, data_offsets });
        }
        (entries, end)
    }

    /// The weights of one segment, verified by the checkpoint's digests, and their step.
    fn restore(&self, layout: &Layout, segment: &Segment) -> Outcome<(Vec<Vec<f32>>, u64)> {
        let tensors = &layout.tensors()[segment.tensors.clone()];
        let mut weights: Vec<_> = tensors.iter().map(|t| vec![0.0_f32; t.range.len()]).collect();
        let part = |(tensor, data): (&models::layout::Tensor, _)| {
            let name = weight_in_checkpoint(&tensor.name);
            let tensor = TensorBox::whole(&name, Dtype::F32, &tensor.shape);
            PartMut { tensor, data: bytemuck::cast_slice_mut::<f32, u8>(data) }
        };
        let data = weights.iter_mut().map(Vec::as_mut_slice);
        let mut parts: Vec<_> = tensors.iter().zip(data).map(part).collect();
        let restored = self.store.restore(self.checkpoint, &mut parts, &Alone);
        let restored = restored.map_err(|error| Failure::new(ExitCode::Checkpoint, error))?;
        drop(parts);
        Ok((weights, restored.step))
    }

    fn write_segment(
        &self,
        layout: &Layout,
        segment: &Segment,
        weights: &[Vec<f32>],
        file: &mut impl Write,
    ) -> std::io::Result<()> {
        let tensors = &layout.tensors()[segment.tensors.clone()];
        for (tensor, weights) in tensors.iter().zip(weights) {
            for piece in pieces(self.config, tensor) {
                let ours = &weights[piece.elements()];
                if piece.is_transposed {
                    let mut theirs = vec![0.0; ours.len()];
                    transpose(&mut theirs, ours, piece.columns);
                    file.write_all(bytemuck::cast_slice(&theirs))?;
                } else {
                    file.write_all(bytemuck::cast_slice(ours))?;
                }
            }
        }
        Ok(())
    }
}
