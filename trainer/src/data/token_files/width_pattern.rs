//! Detection of the id width in a file that does not record it.
//!
//! Read as uint16, a file of wider ids has the lower half of an id where the next has 0, or a small
//! number: vocabularies have at most a few hundred thousand ids. In uint16 tokens no place is like
//! that, whatever the text.

use super::format::field;

/// Size of one part of a file that is sampled.
const PART_BYTES: usize = 16 << 10;
/// Number of parts that are sampled, at equal distances.
const PARTS: usize = 64;
/// Fewest bytes that show a pattern.
const BYTES_MIN: usize = 128;
/// Fewest non-zero lower halves that show a pattern: with fewer the file may be mostly padding.
const NON_ZERO_MIN: u64 = 32;
/// Fewest non-zero lower halves that show a pattern, as a percentage of the ids.
const NON_ZERO_PERCENT_MIN: u64 = 5;
/// Factor by which lower halves exceed the upper halves on average. Uniform ids below a million
/// have a factor of 4000, and ids of text a larger one.
const FACTOR: u64 = 256;

/// Width that differs from that of uint16 tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Width {
    /// Bytes of one id.
    pub(super) bytes: usize,
    pub(super) is_big_endian: bool,
}

/// Finds the pattern of ids wider than uint16.
pub(super) fn find(bytes: &[u8]) -> Option<Width> {
    if bytes.len() < BYTES_MIN {
        return None;
    }
    let little = width(places(bytes, u16::from_le_bytes));
    let big = || {
        let mut places = places(bytes, u16::from_be_bytes);
        places.reverse();
        width(places)
    };
    little
        .map(|bytes| Width { bytes, is_big_endian: false })
        .or_else(|| big().map(|bytes| Width { bytes, is_big_endian: true }))
}

/// Returns the bytes of an id whose lowest uint16 is the first of four, or the first and the third.
fn width([a, b, c, d]: [Place; 4]) -> Option<usize> {
    let is_above = |lower: u64, upper: u64| lower > FACTOR * upper;
    let is_enough = |non_zero: u64, ids: u64| {
        non_zero >= NON_ZERO_MIN && non_zero * 100 >= ids * NON_ZERO_PERCENT_MIN
    };
    if is_above(a.sum, b.sum + c.sum + d.sum) {
        return is_enough(a.non_zero, a.count).then_some(8);
    }
    let is_wide = is_above(a.sum + c.sum, b.sum + d.sum);
    (is_wide && is_enough(a.non_zero + c.non_zero, a.count + c.count)).then_some(4)
}

/// Statistics of the uint16 at one of the four places of eight bytes.
#[derive(Debug, Default, Clone, Copy)]
struct Place {
    sum: u64,
    non_zero: u64,
    count: u64,
}

/// Returns the statistics of each of four places, over parts of the file.
fn places(bytes: &[u8], decode: impl Fn([u8; 2]) -> u16) -> [Place; 4] {
    let mut places = [Place::default(); 4];
    let distance = (bytes.len() / PARTS).next_multiple_of(8).max(PART_BYTES);
    for start in (0..bytes.len()).step_by(distance) {
        let end = bytes.len().min(start + PART_BYTES);
        for eight in bytes[start..end].as_chunks::<8>().0 {
            for (index, place) in places.iter_mut().enumerate() {
                let value = field(eight, 2 * index).map_or(0, &decode);
                // All ones are the upper half of a negative number, which is padding.
                place.sum += if value == u16::MAX { 0 } else { u64::from(value) };
                place.non_zero += u64::from(value != 0);
                place.count += 1;
            }
        }
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a thousand different ids below the vocabulary.
    fn ids(vocabulary: u64) -> impl Iterator<Item = u64> + Clone {
        (0..1000_u64).map(move |at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) % vocabulary)
    }

    fn find_in<const N: usize>(vocabulary: u64, encode: impl Fn(u64) -> [u8; N]) -> Option<Width> {
        find(&ids(vocabulary).flat_map(encode).collect::<Vec<_>>())
    }

    #[test]
    fn wide_ids_have_a_pattern_and_narrow_ones_have_none() {
        for vocabulary in [2, 4, 256, 50_257, 65_536, 128_256, 1_000_000] {
            for is_big_endian in [false, true] {
                let four = |id: u64| match is_big_endian {
                    false => (id as u32).to_le_bytes(),
                    true => (id as u32).to_be_bytes(),
                };
                let eight = |id: u64| match is_big_endian {
                    false => id.to_le_bytes(),
                    true => id.to_be_bytes(),
                };
                let expected = |bytes| Some(Width { bytes, is_big_endian });
                assert_eq!(find_in(vocabulary, four), expected(4), "{vocabulary}");
                assert_eq!(find_in(vocabulary, eight), expected(8), "{vocabulary}");
            }
            let narrow = find_in(vocabulary.min(65_536), |id| (id as u16).to_le_bytes());
            assert_eq!(narrow, None, "{vocabulary}");
        }
    }

    #[test]
    fn padding_and_uniform_files_are_not_misjudged() {
        let padded = ids(50_257).flat_map(|id| [id as i32, 7, -1]);
        let padded: Vec<u8> = padded.flat_map(i32::to_le_bytes).collect();
        assert_eq!(find(&padded), Some(Width { bytes: 4, is_big_endian: false }));
        assert_eq!(find(&[0; 1000]), None);
        assert_eq!(find(&[1, 0].repeat(1000)), None);
        let mostly_padding = [&[5][..], &[0; 199]].concat();
        assert_eq!(find(&mostly_padding), None);
        assert_eq!(find(&mostly_padding.repeat(1000)), None);
    }

    /// Checks that padding at the start does not hide the rest.
    #[test]
    fn a_pattern_in_the_middle_is_found() {
        let mut bytes = vec![0; 4 << 20];
        bytes.extend(ids(50_257).cycle().take(200_000).flat_map(|id| (id as u32).to_le_bytes()));
        bytes.resize(bytes.len() + (4 << 20), 0);
        assert_eq!(find(&bytes), Some(Width { bytes: 4, is_big_endian: false }));
    }
}
