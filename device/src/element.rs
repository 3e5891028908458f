//! Types of the elements of buffers.

mod sealed {
    pub trait Sealed {}
}

/// A type that buffers can hold: plain bits, every pattern valid, all bits zero its default.
pub trait Element:
    Copy + Default + Send + Sync + std::fmt::Debug + sealed::Sealed + 'static
{
}

macro_rules! elements {
    ($($type:ty),*) => {
        $(
            impl sealed::Sealed for $type {}
            impl Element for $type {}
        )*
    };
}
elements!(u8, u32, u64, half::bf16, f32, f64);

#[cfg(test)]
mod tests {
    #[test]
    fn defaults_are_all_zero_bits() {
        assert_eq!(half::bf16::default().to_bits(), 0);
        assert_eq!((f32::default().to_bits(), f64::default().to_bits()), (0, 0));
    }
}
