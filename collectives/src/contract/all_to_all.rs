//! Exchanges of a part from every rank to every other.

use std::fmt::Debug;

use device::Device;
use half::bf16;

use super::terms::{Terms, expect_ok, value};
use crate::{AllToAll, Collective, Element, Parts};

/// Every rank has the parts that all others have for it, of equal lengths and of very different
/// ones, some of them empty.
///
/// # Panics
/// Panics if an element is wrong.
pub fn all_to_all(collective: &dyn Collective, terms: &Terms) {
    let message = terms.message_elements_max;
    for len in [0, 1, message + 7] {
        exchange::<bf16>(collective, terms, |_, _| len);
    }
    let uneven = |from: usize, to: usize| match (3 * from + 5 * to) % 4 {
        0 => 0,
        1 => 2 * message + to,
        other => 10 * other + from,
    };
    exchange::<u8>(collective, terms, uneven);
    exchange::<f32>(collective, terms, uneven);
    // One rank has everything.
    exchange::<f32>(collective, terms, |_, to| if to == 0 { message } else { 0 });
}

/// `len` is that of the part from a rank to another.
fn exchange<E>(collective: &dyn Collective, terms: &Terms, len: impl Fn(usize, usize) -> usize)
where
    E: Element + From<u8> + PartialEq + Debug,
{
    let (own, world) = (collective.rank(), collective.world());
    let part = |from: usize, to: usize| {
        (0..len(from, to)).map(move |index| E::from(value(from + 7 * to, index)))
    };
    let sent_lens: Vec<usize> = (0..world).map(|to| len(own, to)).collect();
    let received_lens: Vec<usize> = (0..world).map(|from| len(from, own)).collect();
    let mut all_to_all = AllToAll::new(&Device::Host, world);
    for round in 0..2 {
        let mut sent: Vec<E> = (0..world).flat_map(|to| part(own, to)).collect();
        // One more, which stays.
        let mut received = vec![E::from(9); received_lens.iter().sum::<usize>() + 1];
        let result = all_to_all.run(
            collective,
            Parts { elements: (&mut sent).into(), lens: &sent_lens },
            Parts { elements: (&mut received).into(), lens: &received_lens },
            terms.deadline(),
        );
        expect_ok(collective, "all-to-all", result);
        let expected = (0..world).flat_map(|from| part(from, own));
        let expected: Vec<E> = expected.chain([E::from(9)]).collect();
        assert!(received == expected, "all-to-all of {received_lens:?}, round {round}");
    }
}
