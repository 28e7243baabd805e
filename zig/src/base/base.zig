//! The base room: what every other room stands on and what stands on nothing. Aligned memory, seeded randomness,
//! bit streams and bit sets, the checksum, the CPU level, the clock, and the limits of the format.
pub const memory = @import("memory.zig");
pub const AlignedBytes = memory.AlignedBytes;
pub const allocator = memory.allocator;
pub const alloc_untouched = memory.alloc_untouched;
pub const free_untouched = memory.free_untouched;
pub const give_back = memory.give_back;

pub const Prng = @import("prng.zig").Prng;

pub const bits = @import("bits.zig");
pub const BitReader = bits.BitReader;
pub const BitWriter = bits.BitWriter;

pub const BitSet = @import("bitset.zig").BitSet;

pub const checksum = @import("checksum.zig").checksum;

pub const cpu = @import("cpu.zig");

pub const clock = @import("clock.zig");
pub const nowMicros = clock.nowMicros;

pub const limits = @import("limits.zig");

test {
    _ = memory;
    _ = @import("prng.zig");
    _ = bits;
    _ = @import("bitset.zig");
    _ = @import("checksum.zig");
    _ = cpu;
    _ = clock;
    _ = limits;
}
