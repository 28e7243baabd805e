//! Dot products of packed codes with a query. A lane multiplies 32 dimensions at a time: `bits` words of a code, taken apart to
//! 8 words of four bytes each. The order of dimensions in a word is the one that takes the fewest instructions, and
//! the query's plane has the same order.
const std = @import("std");
const layout = @import("../layout.zig");
const warp = @import("../warp.zig");
const U = warp.U;
const I = warp.I;
const splat = warp.splat;

/// Words of four dimensions each.
pub const fields = layout.group_dims / 4;

/// Whether a word of a code is the sum of fields shifted.
fn is_whole(comptime bits: u32) bool {
    return 8 % bits == 0;
}

/// The dimension of a group that is byte `byte` of field `field`.
pub fn dim_of(comptime bits: u32, field: usize, byte: usize) usize {
    if (comptime is_whole(bits)) {
        const per_byte = 8 / bits; // fields of a word
        return field / per_byte * (4 * per_byte) + byte * per_byte + field % per_byte;
    }
    return field + 8 * byte;
}

/// Takes a group of a code apart.
pub inline fn unpack(comptime bits: u32, words: [bits]U) [fields]U {
    var out: [fields]U = undefined;
    if (comptime is_whole(bits)) {
        const per_byte = 8 / bits;
        inline for (0..fields) |field| out[field] = masked(words[field / per_byte], field % per_byte * bits, low(bits));
        return out;
    }
    // Eight dimensions are `bits` bytes. Byte i of each of the four eights, side by side:
    var columns: [bits]U = undefined;
    inline for (0..bits) |i| {
        const at = [4]u32{ i, bits + i, 2 * bits + i, 3 * bits + i };
        const lower = warp.bytes(words[at[0] / 4], words[at[1] / 4], .{ at[0] % 4, 4 + at[1] % 4, 0, 0 });
        const upper = warp.bytes(words[at[2] / 4], words[at[3] / 4], .{ at[2] % 4, 4 + at[3] % 4, 0, 0 });
        columns[i] = warp.bytes(lower, upper, .{ 0, 1, 4, 5 });
    }
    inline for (0..fields) |field| {
        const byte = field * bits / 8;
        const from = field * bits % 8;
        const there = @min(bits, 8 - from); // bits of it in that byte
        out[field] = masked(columns[byte], from, low(there));
        if (there < bits) out[field] |= (columns[byte + 1] & splat(U, low(bits - there))) << @as(Shift, if (warp.on_device) there else @splat(there));
    }
    return out;
}

const Shift = if (warp.on_device) u5 else @Vector(layout.lanes, u5);

inline fn masked(word: U, comptime from: u32, comptime mask: u32) U {
    return (word >> @as(Shift, if (warp.on_device) from else @splat(from))) & splat(U, mask);
}

/// The lowest `bits` bits of every byte.
fn low(comptime bits: u32) u32 {
    return ((1 << bits) - 1) * 0x01010101;
}

/// The largest power of two, at most 16, that words of a group are aligned to.
pub fn alignment(comptime bits: u32) u32 {
    return @min(16, 4 * (bits & (~bits + 1)));
}

/// Words of a group of the query's plane.
pub inline fn load_plane(planes: u64, word: U) [fields]U {
    return warp.load_words(fields, 16, planes, warp.times(word, 4));
}

/// Σ of one group of a code, from the byte `at` on.
pub inline fn dot(comptime bits: u32, codes: u64, at: warp.Address, plane: [fields]U) I {
    const unpacked = unpack(bits, warp.load_words(bits, alignment(bits), codes, at));
    var sum = splat(I, 0);
    inline for (unpacked, plane) |code, query| sum = warp.dp4a(sum, code, query);
    return sum;
}
