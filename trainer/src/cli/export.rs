//! `yardstick export`.

use std::path::{Path, PathBuf};

use clap::Args;

use super::checkpoints::{newest, store};
use super::print;
use crate::config::Config;
use crate::failure::{ExitCode, Failure, Outcome};
use crate::hugging_face;

/// Write a run's weights as a Hugging Face folder: `config.json` and `model.safetensors`, in f32.
///
/// `GPT2LMHeadModel` and `LlamaForCausalLM` load it, and so does `yardstick train --init-from`.
#[derive(Debug, Args)]
pub(super) struct Export {
    /// The run's folder, or that of one of its checkpoints.
    folder: PathBuf,
    /// The folder to write; it must be empty or not there.
    #[arg(long, value_name = "FOLDER")]
    out: PathBuf,
    /// Name of the checkpoint [default: the newest committed one].
    #[arg(long, value_name = "NAME")]
    checkpoint: Option<String>,
}

impl Export {
    pub(super) fn run(self) -> Outcome<ExitCode> {
        let (run, named) = self.source()?;
        let store = store(run)?;
        let checkpoint = match named {
            Some(name) => name,
            None => newest(&store, run)?,
        };
        let config = run.join("config.toml");
        let config = Config::load(&config.to_string_lossy(), &[])?;
        let model = &config.workload.model;
        let exported = hugging_face::export(&store, &checkpoint, model, &self.out)?;
        print(format!(
            "{}: {} tensors, {} bytes, of {} after step {}",
            self.out.display(),
            exported.tensors,
            exported.bytes,
            config.name,
            exported.step
        ))
    }

    /// The run's folder and the checkpoint that was named, in whichever way.
    fn source(&self) -> Outcome<(&Path, Option<String>)> {
        let is_run = self.folder.join("checkpoints").is_dir();
        let parent = self.folder.parent().filter(|parent| parent.ends_with("checkpoints"));
        let parent = parent.filter(|_| !is_run);
        let (Some(run), Some(name)) = (parent.and_then(Path::parent), self.folder.file_name())
        else {
            return Ok((&self.folder, self.checkpoint.clone()));
        };
        if self.checkpoint.is_some() {
            let shown = self.folder.display();
            return Err(Failure::usage(format!("{shown}: a checkpoint, and --checkpoint as well")));
        }
        Ok((run, Some(name.to_string_lossy().into_owned())))
    }
}
