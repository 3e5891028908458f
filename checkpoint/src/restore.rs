//! Filling boxes from the shards of any number of ranks.
//!
//! Planning intersects each wanted box with the boxes that were saved and turns the result into
//! copies within chunks. Reading takes one chunk at a time, and copies from it only after its
//! digest has been found right.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::format::index::{BoxEntry, Index, RankState, ShardEntry, index_file};
use crate::format::manifest::{Manifest, rank_folder};
use crate::format::sealed::unseal;
use crate::name::Name;
use crate::region::{Region, Run};
use crate::{Crc64, Error, PartMut, Result, Store, TensorBox};

/// Bytes to copy out of one chunk.
#[derive(Debug)]
struct Piece {
    part: usize,
    /// Start in the shard's data.
    source: u64,
    /// Start in the part's bytes.
    target: usize,
    bytes: usize,
}

/// Pieces by saved rank and file number, then by chunk: the order of the disk.
type Plan = BTreeMap<(usize, usize), BTreeMap<u64, Vec<Piece>>>;

/// A saved box and where it lies.
#[derive(Clone, Copy)]
struct Source<'a> {
    rank: usize,
    file: usize,
    shard: &'a ShardEntry,
    entry: &'a BoxEntry,
}

/// A committed checkpoint whose manifest and indexes are read and checked.
pub(crate) struct Opened<'a> {
    pub(crate) store: &'a Store,
    pub(crate) name: &'a Name,
    pub(crate) manifest: &'a Manifest,
    /// By saved rank.
    pub(crate) indexes: Vec<Index>,
    /// How long to wait for each file that is not there.
    pub(crate) patience: Duration,
}

/// Tries again while a file is not there that a manifest names: the commit may be newer than this
/// machine's view of the folder.
pub(crate) fn patiently<T>(patience: Duration, read: impl Fn() -> Result<T>) -> Result<T> {
    let until = Instant::now() + patience;
    let mut pause = Duration::from_millis(20);
    loop {
        match read() {
            Err(error) if error.is_absence() && Instant::now() + pause < until => {
                std::thread::sleep(pause);
                pause *= 2;
            }
            outcome => return outcome,
        }
    }
}

impl Store {
    /// The folder of a saved rank.
    pub(crate) fn rank_path(&self, name: &Name, manifest: &Manifest, rank: usize) -> PathBuf {
        self.folder(name).join(rank_folder(rank, manifest.ranks_per_folder))
    }

    pub(crate) fn read_index(
        &self,
        name: &Name,
        manifest: &Manifest,
        rank: usize,
    ) -> Result<Index> {
        let text = self.read_index_text(name, manifest, rank)?;
        self.parse_index(name, manifest, rank, &text)
    }

    pub(crate) fn read_index_text(
        &self,
        name: &Name,
        manifest: &Manifest,
        rank: usize,
    ) -> Result<String> {
        read_text(&self.rank_path(name, manifest, rank).join(index_file(rank)))
    }

    pub(crate) fn parse_index(
        &self,
        name: &Name,
        manifest: &Manifest,
        rank: usize,
        text: &str,
    ) -> Result<Index> {
        let path = self.rank_path(name, manifest, rank).join(index_file(rank));
        let (index, digest): (Index, _) = unseal(&path, text.as_bytes())?;
        let expected = &manifest.ranks[rank].index;
        if digest != *expected {
            return Err(Error::damaged(&path, 0, format!("digest {expected}"), digest));
        }
        if !index.files.iter().all(ShardEntry::is_consistent) {
            return Err(Error::damaged(&path, 0, "sizes that fit together", "others"));
        }
        Ok(index)
    }
}

/// A file as text; what is no text is damaged.
pub(crate) fn read_text(path: &Path) -> Result<String> {
    let bytes = fs::read(path).map_err(Error::io(path, "read"))?;
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to() as u64;
        Error::damaged(path, at, "UTF-8", "other bytes")
    })
}

impl Opened<'_> {
    /// Fills the parts, and returns how many bytes were read. `nearest` is the saved rank whose
    /// files are taken first where several have the same elements.
    pub(crate) fn fill(&self, parts: &mut [PartMut<'_>], nearest: usize) -> Result<u64> {
        let plan = self.plan(parts, nearest)?;
        let mut buffer = Vec::new();
        let mut bytes_read = 0;
        for ((rank, file), chunks) in plan {
            let shard = &self.indexes[rank].files[file];
            let reader = self.reader(rank, shard)?;
            for (chunk, pieces) in chunks {
                let start = chunk * shard.chunk_bytes;
                reader.read_chunk(chunk, &mut buffer)?;
                bytes_read += buffer.len() as u64;
                for piece in pieces {
                    let from = (piece.source - start) as usize;
                    parts[piece.part].data[piece.target..piece.target + piece.bytes]
                        .copy_from_slice(&buffer[from..from + piece.bytes]);
                }
            }
        }
        Ok(bytes_read)
    }

    /// Opens a shard and checks its size and header.
    pub(crate) fn reader<'a>(&self, rank: usize, shard: &'a ShardEntry) -> Result<Reader<'a>> {
        let folder = self.store.rank_path(self.name, self.manifest, rank);
        patiently(self.patience, || Reader::open(folder.join(&shard.file), shard))
    }

    /// The state that a rank saved for itself.
    pub(crate) fn rank_state(&self, rank: usize) -> Result<serde_json::Value> {
        let entry = &self.indexes[rank].state;
        let path = self.store.rank_path(self.name, self.manifest, rank).join(&entry.file);
        let text = patiently(self.patience, || read_text(&path))?;
        let (state, digest): (RankState, _) = unseal(&path, text.as_bytes())?;
        if digest != entry.digest {
            return Err(Error::damaged(&path, 0, format!("digest {}", entry.digest), digest));
        }
        Ok(state.state)
    }

    fn plan(&self, parts: &[PartMut<'_>], nearest: usize) -> Result<Plan> {
        let sources = self.sources(nearest);
        let mut plan = Plan::new();
        for (part, wanted) in parts.iter().enumerate() {
            let wanted = &wanted.tensor;
            let of_name = sources.get(wanted.name.as_str()).map_or(&[][..], Vec::as_slice);
            self.check_kind(wanted, of_name)?;
            let found = cover(&wanted.region(), of_name);
            if let Some(missing) = found.missing.into_iter().next() {
                let checkpoint = self.name.to_string();
                let Region { offset, extent } = missing;
                let tensor = wanted.name.clone();
                return Err(Error::Uncovered { checkpoint, tensor, offset, extent });
            }
            for (source, common) in found.pieces {
                let runs = common.runs(&source.entry.tensor.region(), &wanted.region());
                let chunks = plan.entry((source.rank, source.file)).or_default();
                let size = wanted.dtype.size_bytes();
                runs.iter().for_each(|run| split_at_chunks(chunks, part, &source, run, size));
            }
        }
        Ok(plan)
    }

    fn sources(&self, nearest: usize) -> HashMap<&str, Vec<Source<'_>>> {
        let mut sources: HashMap<&str, Vec<Source<'_>>> = HashMap::new();
        let world = self.indexes.len();
        for rank in (0..world).map(|step| (nearest + step) % world) {
            for (file, shard) in self.indexes[rank].files.iter().enumerate() {
                for entry in &shard.boxes {
                    let of_name = sources.entry(entry.tensor.name.as_str()).or_default();
                    of_name.push(Source { rank, file, shard, entry });
                }
            }
        }
        sources
    }

    fn check_kind(&self, wanted: &TensorBox, sources: &[Source<'_>]) -> Result<()> {
        for source in sources {
            let found = &source.entry.tensor;
            if (found.dtype, &found.shape) != (wanted.dtype, &wanted.shape) {
                let folder = self.store.rank_path(self.name, self.manifest, source.rank);
                let kind = |tensor: &TensorBox| format!("{:?} {:?}", tensor.dtype, tensor.shape);
                return Err(Error::Mismatch {
                    path: folder.join(&source.shard.file),
                    what: wanted.name.clone(),
                    expected: kind(wanted),
                    found: kind(found),
                });
            }
        }
        Ok(())
    }

    /// The first box of any saved tensor that no rank has.
    pub(crate) fn check_coverage(&self) -> Result<()> {
        for (name, sources) in self.sources(0) {
            let first = &sources[0].entry.tensor;
            let whole = TensorBox::whole(name, first.dtype, &first.shape);
            let missing = cover(&whole.region(), &sources).missing;
            if let Some(Region { offset, extent }) = missing.into_iter().next() {
                let (checkpoint, tensor) = (self.name.to_string(), name.to_owned());
                return Err(Error::Uncovered { checkpoint, tensor, offset, extent });
            }
        }
        Ok(())
    }
}

/// Which source gives what, each element once, and what nobody gives.
struct Cover<'a> {
    pieces: Vec<(Source<'a>, Region)>,
    missing: Vec<Region>,
}

fn cover<'a>(wanted: &Region, sources: &[Source<'a>]) -> Cover<'a> {
    let mut cover = Cover { pieces: Vec::new(), missing: vec![wanted.clone()] };
    if wanted.extent.contains(&0) {
        cover.missing.clear();
    }
    for &source in sources {
        if cover.missing.is_empty() {
            break;
        }
        let given = source.entry.tensor.region();
        let mut rest = Vec::new();
        for missing in cover.missing.drain(..) {
            match missing.intersect(&given) {
                Some(common) => {
                    rest.extend(missing.subtract(&common));
                    cover.pieces.push((source, common));
                }
                None => rest.push(missing),
            }
        }
        cover.missing = rest;
    }
    cover
}

fn split_at_chunks(
    chunks: &mut BTreeMap<u64, Vec<Piece>>,
    part: usize,
    source: &Source<'_>,
    run: &Run,
    element_bytes: usize,
) {
    let mut start = source.entry.range[0] + (run.source * element_bytes) as u64;
    let end = start + (run.elements * element_bytes) as u64;
    let mut target = run.target * element_bytes;
    while start < end {
        let chunk = start / source.shard.chunk_bytes;
        let bytes = (end.min((chunk + 1) * source.shard.chunk_bytes) - start) as usize;
        chunks.entry(chunk).or_default().push(Piece { part, source: start, target, bytes });
        start += bytes as u64;
        target += bytes;
    }
}

/// An open shard.
pub(crate) struct Reader<'a> {
    path: PathBuf,
    file: File,
    shard: &'a ShardEntry,
}

impl<'a> Reader<'a> {
    fn open(path: PathBuf, shard: &'a ShardEntry) -> Result<Self> {
        let file = File::open(&path).map_err(Error::io(&path, "open"))?;
        let found = file.metadata().map_err(Error::io(&path, "stat"))?.len();
        if found != shard.bytes {
            let expected = format!("{} bytes", shard.bytes);
            return Err(Error::damaged(&path, found.min(shard.bytes), expected, found));
        }
        let reader = Self { path, file, shard };
        let mut header = vec![0; shard.header_bytes as usize];
        reader.read(0, &mut header, shard.header_crc64)?;
        Ok(reader)
    }

    /// Reads one chunk and checks it. The buffer then holds the chunk and nothing else.
    pub(crate) fn read_chunk(&self, chunk: u64, buffer: &mut Vec<u8>) -> Result<()> {
        let start = chunk * self.shard.chunk_bytes;
        let bytes = self.shard.chunk_bytes.min(self.shard.data_bytes() - start);
        buffer.resize(bytes as usize, 0);
        let expected = self.shard.chunk_crc64[chunk as usize];
        self.read(self.shard.header_bytes + start, buffer, expected)
    }

    fn read(&self, offset: u64, buffer: &mut [u8], expected: Crc64) -> Result<()> {
        self.file.read_exact_at(buffer, offset).map_err(Error::io(&self.path, "read"))?;
        let found = Crc64::of(buffer);
        if found != expected {
            let expected = format!("CRC64/NVME {expected} over {} bytes", buffer.len());
            return Err(Error::damaged(&self.path, offset, expected, found));
        }
        Ok(())
    }
}
