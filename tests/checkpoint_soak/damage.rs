//! Damage to a file, like that by a disk or a file system that lies.

use std::fs;
use std::path::Path;

use crate::Random;

type Damage = fn(&mut Vec<u8>, usize);

const KINDS: [Damage; 6] = [
    // Cut somewhere.
    |bytes, at| bytes.truncate(at),
    // A tail of zeros.
    |bytes, at| bytes[at..].fill(0),
    // A hole in the middle.
    |bytes, at| {
        let end = bytes.len().min(at + 512);
        bytes[at..end].fill(0);
    },
    // A block written to the wrong place.
    |bytes, at| {
        let block = bytes[..bytes.len().min(4096)].to_vec();
        let end = bytes.len().min(at + block.len());
        bytes[at..end].copy_from_slice(&block[..end - at]);
    },
    // A flipped bit.
    |bytes, at| bytes[at] ^= 0x10,
    // Empty.
    |bytes, _| bytes.clear(),
];

/// Damages a file somewhere, in some way.
pub(crate) fn damage(path: &Path, random: &mut Random) {
    let intact = fs::read(path).unwrap();
    let at = random.below(intact.len());
    let mut bytes = intact.clone();
    random.choose(&KINDS)(&mut bytes, at);
    if bytes == intact {
        bytes[at] ^= 1; // it was zeros, or that very block
    }
    fs::write(path, bytes).unwrap();
}
