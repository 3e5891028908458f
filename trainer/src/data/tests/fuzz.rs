//! Tests that random and mutated headers give an error or tokens, never a panic.

use models::rng::{Purpose, Stream};

use super::*;

/// Opens a token file with an optional index and reads all of its tokens; false if it is refused.
fn exercise(folder: &TempDir, bin: &[u8], idx: Option<&[u8]>) -> bool {
    let index_path = folder.path().join("f.idx");
    match idx {
        Some(idx) => std::fs::write(index_path, idx).unwrap(),
        None => drop(std::fs::remove_file(index_path)),
    }
    let path = write(folder, "f.bin", bin);
    let Ok(file) = open_tokens(&path) else { return false };
    let scan = file.scan().unwrap();
    let mut tokens = vec![0; file.layout.tokens as usize];
    file.read(0, &mut tokens);
    assert_eq!(scan.largest, tokens.iter().max().copied());
    true
}

fn mutate(bytes: &[u8], header_bytes: usize, random: Stream) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for change in 0..=random.below(0, 3) {
        let at = random.below(10 + change, header_bytes as u64) as usize;
        let values = [0, 1, 0x7f, 0x80, 0xff, random.bits(20 + change) as u8];
        bytes[at] = values[random.below(30 + change, 6) as usize];
    }
    if random.below(1, 4) == 0 {
        bytes.truncate(random.below(2, bytes.len() as u64) as usize);
    }
    bytes
}

#[test]
fn mutated_headers_never_panic() {
    let folder = folder();
    let random = Stream::new(11, Purpose::Test);
    let tokens = raw(0..100);
    let llmc = llmc(20_240_520, 1, 100, &tokens);
    let idx = index(8, &[60, 40], &[0, 120], &[0, 1, 2]);
    assert!(exercise(&folder, &llmc, None) && exercise(&folder, &tokens, Some(&idx)));
    let mut accepted = 0;
    for case in 0..1500 {
        let random = random.child(case);
        accepted += usize::from(exercise(&folder, &mutate(&llmc, 16, random), None));
        let idx = mutate(&idx, idx.len(), random);
        accepted += usize::from(exercise(&folder, &tokens, Some(&idx)));
    }
    assert!((1..1500).contains(&accepted), "{accepted} of 3000 accepted: is it tested at all?");
}

#[test]
fn random_bytes_never_panic() {
    let folder = folder();
    let random = Stream::new(12, Purpose::Test);
    for case in 0..500 {
        let random = random.child(case);
        let bytes: Vec<u8> = (0..random.below(0, 1500)).map(|at| random.bits(at) as u8).collect();
        exercise(&folder, &bytes, None);
        let with_magic = [b"MMIDIDX\0\0\x01\0\0\0\0\0\0\0\x08", &bytes[..]].concat();
        exercise(&folder, &bytes, Some(&with_magic));
        let with_magic = [&20_240_520_u32.to_le_bytes(), &bytes[..]].concat();
        exercise(&folder, &with_magic, None);
    }
}
