//! Audit bundles: a folder with all inputs of a verdict, from which `yardstick verify` reproduces
//! it, byte for byte.
//!
//! `settings.json` has the settings of the comparison and the origin of the records. `base/` and
//! `new/` have a folder for each record, with the steps of its run if they were beside it.
//! `verdict.json` is the comparison, and `manifest.json` has the size and BLAKE3 digest of each of
//! these files. Sign the manifest to sign all of it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use record::files::regular_file;
use serde::{Deserialize, Serialize};

use super::comparable::not_comparable;
use super::comparison::{Comparison, Settings};
use super::side::{Side, Source};
use crate::error::{Error, Result};
use record::Record;
use record::limits::{BUNDLED_BYTES_MAX, RECORD_BYTES_MAX};
use record::text::in_user_words;

const MANIFEST: &str = "manifest.json";
const SETTINGS: &str = "settings.json";
const VERDICT: &str = "verdict.json";

/// A folder that is a bundle, or becomes one.
#[derive(Debug)]
pub struct Bundle<'path> {
    /// Version of this program.
    version: &'path str,
    folder: &'path Path,
}

/// A reproduced verdict.
#[derive(Debug)]
pub struct Verified {
    /// The comparison.
    pub comparison: Comparison,
    /// Number of files whose digests were checked.
    pub files: usize,
}

/// Content of `manifest.json`.
#[derive(Debug, Serialize, Deserialize)]
struct Manifest {
    /// Version of the program that made the verdict.
    version: String,
    /// Files by path in the bundle.
    files: BTreeMap<String, FileEntry>,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct FileEntry {
    bytes: u64,
    blake3: String,
}

/// Content of `settings.json`.
#[derive(Debug, Serialize, Deserialize)]
struct Inputs {
    settings: Settings,
    base: Vec<Input>,
    new: Vec<Input>,
}

/// A record of a side.
#[derive(Debug, Serialize, Deserialize)]
struct Input {
    /// Original path.
    from: PathBuf,
    /// Path in the bundle.
    record: String,
}

impl<'path> Bundle<'path> {
    /// Returns the bundle in a folder, for this version of the program.
    pub fn at(folder: &'path Path, version: &'path str) -> Self {
        Self { version, folder }
    }

    /// Writes the inputs of a comparison, and the comparison, into an empty folder.
    ///
    /// # Errors
    /// Exit code 2 for a folder that cannot be written.
    pub fn write(
        &self,
        sides: [&Side; 2],
        settings: &Settings,
        comparison: &Comparison,
    ) -> Result<()> {
        let [base, new] = sides;
        let inputs = Inputs {
            settings: settings.clone(),
            base: self.write_side("base", base)?,
            new: self.write_side("new", new)?,
        };
        self.write_json(SETTINGS, &inputs)?;
        self.write_json(VERDICT, comparison)?;
        let mut files = BTreeMap::new();
        for name in self.names("")? {
            let entry = FileEntry::of(&self.read(&name)?);
            files.insert(name, entry);
        }
        let version = self.version.to_owned();
        self.write_json(MANIFEST, &Manifest { version, files })
    }

    fn write_side(&self, name: &str, side: &Side) -> Result<Vec<Input>> {
        let numbered = (1..).zip(&side.sources);
        numbered.map(|(number, source)| self.write_source(name, number, source)).collect()
    }

    fn write_source(&self, side: &str, number: usize, source: &Source) -> Result<Input> {
        let folder = format!("{side}/{number:03}");
        let record = format!("{folder}/record.json");
        self.write_bytes(&record, &original(source)?)?;
        let is_of_run = source.path.ends_with("record.json");
        let steps = source.path.with_file_name("steps");
        for file in fs::read_dir(&steps).into_iter().flatten().flatten().filter(|_| is_of_run) {
            let name = format!("{folder}/steps/{}", file.file_name().to_string_lossy());
            let path = file.path();
            let bytes = regular_file::read(&path, BUNDLED_BYTES_MAX)
                .map_err(|error| at(&path)(error.source))?;
            self.write_bytes(&name, &bytes)?;
        }
        Ok(Input { from: source.path.clone(), record })
    }

    fn write_json(&self, name: &str, value: &impl Serialize) -> Result<()> {
        self.write_bytes(name, &to_json(value))
    }

    fn write_bytes(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let path = self.folder.join(name);
        let folder = path.parent().unwrap_or(self.folder);
        fs::create_dir_all(folder).and_then(|()| fs::write(&path, bytes)).map_err(at(&path))
    }

    /// Checks every file of the bundle, and reproduces its verdict.
    ///
    /// # Errors
    /// Exit code 12 for a missing, changed or additional file, and for a verdict that does not
    /// follow from these records.
    pub fn verify(&self) -> Result<Verified> {
        let manifest: Manifest = self.parse(MANIFEST)?;
        let files = self.check_files(&manifest)?;
        let inputs: Inputs = self.parse(SETTINGS)?;
        let [base, new] = [&inputs.base, &inputs.new].map(|side| self.read_side(side, &manifest));
        let comparison = Comparison::of(&base?, &new?, &inputs.settings)?;
        if to_json(&comparison) == self.read(VERDICT)? {
            return Ok(Verified { comparison, files });
        }
        let Manifest { version: made_by, .. } = manifest;
        let own = self.version;
        Err(self.refused(if made_by == own {
            format!("{VERDICT}: is not what its records give: {}", comparison.headline)
        } else {
            format!("{VERDICT}: was made by version {made_by}, and this is version {own}")
        }))
    }

    fn check_files(&self, manifest: &Manifest) -> Result<usize> {
        let mut names = self.names("")?;
        names.retain(|name| name != MANIFEST);
        if let Some(missing) = manifest.files.keys().find(|name| !names.contains(name)) {
            return Err(self.refused(format!("{missing}: is missing")));
        }
        for name in &names {
            let Some(expected) = manifest.files.get(name) else {
                return Err(self.refused(format!("{name}: is not in the manifest")));
            };
            if FileEntry::of(&self.read(name)?) != *expected {
                return Err(self.refused(format!("{name}: was changed")));
            }
        }
        Ok(names.len())
    }

    fn read_side(&self, inputs: &[Input], manifest: &Manifest) -> Result<Side> {
        let source = |input: &Input| {
            if !manifest.files.contains_key(&input.record) {
                return Err(self.refused(format!("{}: is not in the manifest", input.record)));
            }
            let bytes = self.read(&input.record)?;
            let record = Record::parse(&self.folder.join(&input.record), &bytes);
            let record = record.map_err(|error| self.refused(error.to_string()))?;
            Ok(Source { path: input.from.clone(), record })
        };
        Ok(Side::new(inputs.iter().map(source).collect::<Result<_>>()?))
    }

    /// Lists the paths of all files below a folder of the bundle, sorted.
    fn names(&self, folder: &str) -> Result<Vec<String>> {
        let path = self.folder.join(folder);
        let mut names = Vec::new();
        for entry in fs::read_dir(&path).map_err(|error| self.unreadable(folder, &error))? {
            let entry = entry.map_err(|error| self.unreadable(folder, &error))?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let name = if folder.is_empty() { name } else { format!("{folder}/{name}") };
            if entry.path().is_dir() { names.extend(self.names(&name)?) } else { names.push(name) }
        }
        names.sort();
        Ok(names)
    }

    fn parse<T: for<'de> Deserialize<'de>>(&self, name: &str) -> Result<T> {
        let parsed = serde_json::from_slice(&self.read(name)?);
        parsed.map_err(|error: serde_json::Error| {
            self.refused(format!("{name}: {}", in_user_words(&error.to_string())))
        })
    }

    fn read(&self, name: &str) -> Result<Vec<u8>> {
        let bytes = regular_file::read(&self.folder.join(name), BUNDLED_BYTES_MAX);
        bytes.map_err(|error| self.unreadable(name, &error.source))
    }

    fn unreadable(&self, name: &str, error: &std::io::Error) -> Error {
        self.refused(format!("{name}: {error}"))
    }

    fn refused(&self, text: String) -> Error {
        Error::NotComparable(format!("not verified: {}: {text}", self.folder.display()))
    }
}

impl FileEntry {
    fn of(bytes: &[u8]) -> Self {
        let blake3 = blake3::hash(bytes).to_hex().to_string();
        Self { bytes: bytes.len() as u64, blake3 }
    }
}

/// Requires a folder that is empty or does not exist.
///
/// # Errors
/// Exit code 2 for any other folder, which `flag` names.
pub fn require_empty(flag: &str, folder: &Path) -> Result<()> {
    if fs::read_dir(folder).is_ok_and(|mut found| found.next().is_some()) {
        let shown = folder.display();
        return Err(Error::Usage(format!("{flag} {shown}: expected an empty folder")));
    }
    Ok(())
}

/// Reads the file of a record; from an object store, the record as it was written.
fn original(source: &Source) -> Result<Vec<u8>> {
    let Ok(bytes) = regular_file::read_named(&source.path, RECORD_BYTES_MAX) else {
        return Ok(to_json(&source.record));
    };
    match Record::parse(&source.path, &bytes) {
        Ok(record) if record == source.record => Ok(bytes),
        _ => {
            let path = source.path.display();
            Err(not_comparable(format!("{path}: has changed while it was compared")))
        }
    }
}

fn at(path: &Path) -> impl Fn(std::io::Error) -> Error {
    move |error| Error::Usage(format!("{}: {error}", path.display()))
}

fn to_json(value: &impl Serialize) -> Vec<u8> {
    let mut bytes = serde_json::to_vec_pretty(value).expect("plain data in memory");
    bytes.push(b'\n');
    bytes
}

#[cfg(test)]
mod tests {
    use super::super::damaged::record;
    use super::super::tests::{settings, side};
    use super::*;

    /// Checks that a bundle from another processor gives its verdict on this one. Rewrite with
    /// `YARDSTICK_UPDATE_GOLDEN=1 cargo test --profile testing --workspace bundle::`.
    #[test]
    fn a_verdict_does_not_depend_on_the_processor() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/compare/golden");
        if std::env::var_os("YARDSTICK_UPDATE_GOLDEN").is_some() {
            let [base, new] = [0, 200].map(|minute| side(vec![record(minute).sealed()]));
            let comparison = Comparison::of(&base, &new, &settings()).unwrap();
            let _ = fs::remove_dir_all(&folder);
            Bundle::at(&folder, "1.0").write([&base, &new], &settings(), &comparison).unwrap();
        }
        let verified = Bundle::at(&folder, "1.0").verify().unwrap();
        assert_eq!(verified.files, 4);
        assert_eq!(verified.comparison.exit_code, 11);
    }
}
