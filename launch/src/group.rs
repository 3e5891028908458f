//! The backend of a world: how its ranks talk, and how they part.

use std::ops::Deref;
#[cfg(feature = "mpi")]
use std::time::{Duration, Instant};

use collectives::Collective;

/// A backend that can be closed, and whoever closed it learns how that went. Dropped it is closed
/// as well, without a word.
#[derive(Debug)]
pub struct Group(Kind);

#[derive(Debug)]
enum Kind {
    /// With nothing to close.
    Plain(Box<dyn Collective>),
    /// With the patience of its end.
    #[cfg(feature = "mpi")]
    Mpi(Box<collectives::Mpi>, Duration),
}

impl Group {
    /// MPI, whose ranks wait so long for each other at the end.
    #[cfg(feature = "mpi")]
    pub(crate) fn mpi(mpi: collectives::Mpi, closing: Duration) -> Self {
        Self(Kind::Mpi(Box::new(mpi), closing))
    }

    /// Parts from the other ranks in order: waits for them, then finalises.
    ///
    /// # Errors
    /// That of [`Mpi::close`](collectives::Mpi::close). The communication thread may then be stuck
    /// in the library, so that the process should end
    /// [without clean-up](crate::signals::exit_at_once).
    pub fn close(self) -> Result<(), collectives::Error> {
        match self.0 {
            Kind::Plain(_) => Ok(()),
            #[cfg(feature = "mpi")]
            Kind::Mpi(mpi, closing) => mpi.close(Instant::now() + closing),
        }
    }
}

impl<C: Collective + 'static> From<C> for Group {
    fn from(collective: C) -> Self {
        Self(Kind::Plain(Box::new(collective)))
    }
}

impl Deref for Group {
    type Target = dyn Collective;

    fn deref(&self) -> &Self::Target {
        match &self.0 {
            Kind::Plain(collective) => &**collective,
            #[cfg(feature = "mpi")]
            Kind::Mpi(mpi, _) => &**mpi,
        }
    }
}
