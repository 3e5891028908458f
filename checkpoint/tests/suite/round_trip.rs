//! Round trips: state is restored bit for bit, in any world, and other safetensors readers read it.

use std::sync::Mutex;

use checkpoint::{
    Dtype, Failpoint, Failpoints, NoFailpoints, Options, Part, PartMut, Peers, SingleRank,
    TensorBox,
};
use safetensors::SafeTensors;
use serde_json::Value;

use crate::support::*;

#[test]
fn every_world_reads_every_other() {
    for saved in 1..=4 {
        let folder = tempfile::tempdir().unwrap();
        let store = open(folder.path());
        let name = save(&store, saved, 7, 1, 0);
        for restored in 1..=5 {
            let result = resume(&store, restored);
            let found = (result.checkpoint.as_str(), result.step, result.attempt);
            assert_eq!(found, (&*name, 7, 1), "{saved} ranks to {restored}");
        }
        assert!(store.verify(&name).unwrap().problems.is_empty());
    }
}

#[test]
fn a_rank_reads_only_the_chunks_it_needs() {
    let store = TemporaryStore::new();
    save(&store, 2, 7, 1, 0);
    let model = model(7);
    for world in [1, 3] {
        on_ranks(world, |peers| {
            let expected = parts(&model, world, peers.rank());
            let mut data: Vec<_> = expected.iter().map(|part| vec![0; part.data.len()]).collect();
            let mut wanted: Vec<_> = expected
                .iter()
                .zip(&mut data)
                .map(|(part, data)| PartMut { tensor: part.tensor.clone(), data })
                .collect();
            let restored = store.resume(&mut wanted, peers).unwrap().unwrap();
            let bytes: usize = data.iter().map(Vec::len).sum();
            assert!(expected.iter().zip(&data).all(|(part, data)| part.data == data));
            // And at most the two chunks at the ends of each box.
            let most = bytes + data.len() * 2 * SMALL.chunk_bytes as usize;
            assert!(restored.bytes_read <= most as u64, "{} of {bytes}", restored.bytes_read);
        });
    }
}

#[test]
fn column_boxes_and_replicas_are_put_together() {
    let store = TemporaryStore::new();
    let whole: Vec<u8> = (0..6 * 10 * 8).map(|offset| (offset % 251) as u8).collect();
    let column = |rank: usize| TensorBox {
        offset: vec![0, rank * 4],
        extent: vec![6, [4, 4, 2][rank]],
        ..TensorBox::whole("w", Dtype::F64, &[6, 10])
    };
    on_ranks(3, |peers| {
        let tensor = column(peers.rank());
        let row = |row: usize| {
            let start = (row * 10 + tensor.offset[1]) * 8;
            whole[start..start + tensor.extent[1] * 8].to_vec()
        };
        let own: Vec<u8> = (0..6).flat_map(row).collect();
        let replica = Part { tensor: TensorBox::whole("b", Dtype::U8, &[5]), data: b"bytes" };
        let parts = [replica, Part { tensor, data: &own }];
        store.save(&request(1, 1, Value::Null), &parts, peers, &NoFailpoints).unwrap();
    });
    let mut data = vec![0; whole.len()];
    let mut bytes = [0; 5];
    let mut parts = [
        PartMut { tensor: TensorBox::whole("w", Dtype::F64, &[6, 10]), data: &mut data },
        PartMut { tensor: TensorBox::whole("b", Dtype::U8, &[5]), data: &mut bytes },
    ];
    store.resume(&mut parts, &SingleRank).unwrap().unwrap();
    assert_eq!((data, &bytes), (whole, b"bytes"));
}

#[test]
fn the_safetensors_crate_reads_every_shard() {
    let store = TemporaryStore::new();
    let name = save(&store, 3, 7, 1, 0);
    let model = model(7);
    let shapes = shapes();
    let mut shards = 0;
    let mut bytes = 0;
    for path in files(&store.path().join(&name)) {
        if path.extension().is_none_or(|extension| extension != "safetensors") {
            continue;
        }
        let file = std::fs::read(&path).unwrap();
        let (header, metadata) = SafeTensors::read_metadata(&file).unwrap();
        assert_eq!((header + 8) % 4096, 0, "data starts at a multiple of 4096");
        let metadata = metadata.metadata().as_ref().unwrap();
        assert_eq!((&*metadata["run"], &*metadata["checkpoint"]), ("run-1", &*name));
        assert_eq!(metadata["step"], "7");
        for (key, view) in SafeTensors::deserialize(&file).unwrap().tensors() {
            let tensor = shapes.iter().position(|(name, _)| key.starts_with(name)).unwrap();
            let (_, shape) = &shapes[tensor];
            let starts = key.split_once('[').map_or("", |(_, slices)| slices).split(',');
            let start = |slice: &str| slice.split(':').next().unwrap().parse().unwrap_or(0);
            let row_major = |number, (slice, size): (&str, &usize)| number * size + start(slice);
            let first = 4 * starts.zip(shape).fold(0, row_major); // rows of boxes are contiguous
            assert_eq!(view.data(), &model[tensor][first..first + view.data().len()], "{key}");
            bytes += view.data().len();
        }
        shards += 1;
    }
    assert!(shards > 3, "several files per rank");
    assert_eq!(bytes, model.iter().map(Vec::len).sum::<usize>(), "each byte once");
}

#[test]
fn large_parts_cross_pieces_and_default_chunks() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).with_options(Options::default());
    let bytes = (16 << 20) + (5 << 20) + 12;
    let data: Vec<u8> = (0..bytes).map(|offset: usize| (offset / 7 % 253) as u8).collect();
    let tensor = TensorBox::whole("w", Dtype::F32, &[bytes / 4]);
    let parts = [Part { tensor: tensor.clone(), data: &data }];
    let request = request(1, 1, Value::Null);
    let report = store.save(&request, &parts, &SingleRank, &NoFailpoints).unwrap();
    assert_eq!((report.bytes, report.bytes_total), (bytes as u64, bytes as u64));
    let verified = store.verify(&report.checkpoint).unwrap();
    assert_eq!((verified.files, verified.chunks, verified.bytes), (1, 2, bytes as u64));
    let mut found = vec![0; bytes];
    store.resume(&mut [PartMut { tensor, data: &mut found }], &SingleRank).unwrap().unwrap();
    assert!(found == data);
}

#[test]
fn a_manifest_that_no_reader_would_take_is_not_written() {
    let store = TemporaryStore::new();
    let kept = save(&store, 1, 10, 1, 1);
    let state = "x".repeat(128 << 20).into();
    let tensor = TensorBox::whole("t", Dtype::U8, &[1]);
    let parts = [Part { tensor, data: &[1] }];
    let error = store.save(&request(20, 1, state), &parts, &SingleRank, &NoFailpoints);
    let error = error.unwrap_err().to_string();
    assert!(error.contains("MANIFEST.json: cannot write: expected at most 134217728 "), "{error}");
    assert_eq!(names(&store), [kept]);
}

/// Records the failpoints of one rank.
#[derive(Default)]
struct Recorder(Mutex<Vec<Failpoint>>);

impl Failpoints for Recorder {
    fn hit(&self, failpoint: Failpoint) {
        self.0.lock().unwrap().push(failpoint);
    }
}

#[test]
fn failpoints_are_hit_in_their_order() {
    let store = TemporaryStore::new();
    save(&store, 2, 10, 1, 1);
    let hits = on_ranks(2, |peers| {
        let recorder = Recorder::default();
        save_rank(&store, Plan { step: 20, attempt: 1, keep: 1 }, peers, &recorder).unwrap();
        recorder.0.into_inner().unwrap()
    });
    assert_eq!(hits, [Failpoint::ALL.to_vec(), Failpoint::ALL[..4].to_vec()]);
}
