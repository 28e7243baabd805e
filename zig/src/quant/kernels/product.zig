//! Product codes: the distances of a part of a vector to its 256 centroids, and sums of entries of a query's tables. Each lane
//! adds in the order of scalar.zig and without fused operations, so that all levels compute the same bits.
const std = @import("std");
const builtin = @import("builtin");
const abi = @import("abi.zig");
const scalar = @import("scalar.zig");

const x86 = builtin.cpu.arch == .x86_64;
const converts = !x86 or builtin.cpu.has(.x86, .f16c);

const lanes = 16;
const V = @Vector(lanes, f32);
/// Vectors of sums that stay in registers.
const together = if (x86 and builtin.cpu.has(.x86, .avx512f)) 8 else if (x86 and !builtin.cpu.has(.x86, .avx2)) 2 else 4;

inline fn widened(p: [*]const f16) V {
    if (converts) return @floatCast(@as(@Vector(lanes, f16), p[0..lanes].*));
    // Without instructions for f16 a conversion would be a call per value. Values are finite.
    const U = @Vector(lanes, u32);
    const bits: U = @as(@Vector(lanes, u16), @bitCast(@as(@Vector(lanes, f16), p[0..lanes].*)));
    const magnitude: V = @bitCast((bits & @as(U, @splat(0x7fff))) << @splat(13));
    const signs = (bits & @as(U, @splat(0x8000))) << @splat(16);
    return @bitCast(@as(U, @bitCast(magnitude * @as(V, @splat(0x1p112)))) | signs);
}

/// Of `some` vectors of centroids from `first` on.
inline fn sums_of(comptime some: u32, comptime kind: abi.RowSum, columns: [*]const f16, centroids: u32, width: u32, x: [*]const f32, scale: f32, first: usize) [some]V {
    var sums: [some]V = @splat(@splat(0));
    for (0..width) |i| {
        const value: V = @splat(scalar.product_scaled(x[i], scale));
        inline for (&sums, 0..) |*sum, k| {
            const centroid = widened(columns + i * centroids + first + k * lanes);
            if (kind == .difference2) {
                const difference = value - centroid;
                sum.* += difference * difference;
            } else sum.* += value * centroid;
        }
    }
    return sums;
}

pub fn product_table(columns: [*]const f16, centroids: u32, width: u32, x: [*]const f32, scale: f32, kind: abi.RowSum, out: [*]f32) callconv(.c) void {
    switch (kind) {
        inline else => |one| {
            const of = if (one == .difference2) one else .product;
            if (centroids % (together * lanes) == 0) table(together, of, columns, centroids, width, x, scale, out) else table(1, of, columns, centroids, width, x, scale, out);
        },
    }
}

inline fn table(comptime some: u32, comptime kind: abi.RowSum, columns: [*]const f16, centroids: u32, width: u32, x: [*]const f32, scale: f32, out: [*]f32) void {
    var first: usize = 0;
    while (first < centroids) : (first += some * lanes) {
        inline for (sums_of(some, kind, columns, centroids, width, x, scale, first), 0..) |sum, k| out[first + k * lanes ..][0..lanes].* = sum;
    }
}

pub fn product_nearest(columns: [*]const f16, centroids: u32, width: u32, rows: [*]const f32, stride: usize, count: u32, scale: f32, out: [*]u8) callconv(.c) void {
    for (out[0..count], 0..) |*o, j| {
        const x = rows + j * stride;
        o.* = if (centroids % (together * lanes) == 0) nearest(together, columns, centroids, width, x, scale) else nearest(1, columns, centroids, width, x, scale);
    }
}

inline fn nearest(comptime some: u32, columns: [*]const f16, centroids: u32, width: u32, x: [*]const f32, scale: f32) u8 {
    const I = @Vector(lanes, i32);
    var least: V = @splat(std.math.inf(f32));
    var which: I = @splat(0);
    var first: usize = 0;
    while (first < centroids) : (first += some * lanes) {
        inline for (sums_of(some, .difference2, columns, centroids, width, x, scale, first), 0..) |sum, k| {
            const nearer = sum < least;
            which = @select(i32, nearer, @as(I, @splat(@intCast(first + k * lanes))), which);
            least = @select(f32, nearer, sum, least);
        }
    }
    const of_least = least == @as(V, @splat(@reduce(.Min, least)));
    return @intCast(@reduce(.Min, @select(i32, of_least, which + std.simd.iota(i32, lanes), @as(I, @splat(abi.centroids_max)))));
}

pub fn product_scan(entries: [*]const u16, parts: u32, codes: [*]const u8, count: u32, out: [*]u32) callconv(.c) void {
    var done: u32 = 0;
    if (vbmi and parts >= together_parts) {
        while (done + 2 * block <= count) : (done += 2 * block) scan_blocks(2, entries, parts, codes + @as(usize, done) * parts, out + done);
        if (done + block <= count) {
            scan_blocks(1, entries, parts, codes + @as(usize, done) * parts, out + done);
            done += block;
        }
        if (count - done >= tail_least and parts <= parts_max) return scan_tail(entries, parts, codes + @as(usize, done) * parts, count - done, out + done);
    }
    const rest = codes + @as(usize, done) * parts;
    switch (parts) {
        inline 8, 16, 24, 32, 40, 48 => |fixed| scan(fixed, entries, fixed, rest, count - done, out + done),
        else => scan(null, entries, parts, rest, count - done, out + done),
    }
}

/// Loads of single entries: gathers of 16 bits would load twice as much.
inline fn scan(comptime parts_fixed: ?u32, entries: [*]const u16, parts_given: u32, codes: [*]const u8, count: u32, out: [*]u32) void {
    const parts: usize = parts_fixed orelse parts_given;
    for (0..count) |j| out[j] = sum_of(entries, parts, codes + j * parts);
}

inline fn sum_of(entries: [*]const u16, parts: usize, code: [*]const u8) u32 {
    const word = @sizeOf(u64);
    var sums: [2]u32 = @splat(0);
    var m: usize = 0;
    while (m + word <= parts) : (m += word) {
        const bytes: u64 = @bitCast(code[m..][0..word].*);
        inline for (0..word) |i| sums[i % 2] += entries[(m + i) * abi.centroids_max + @as(u8, @truncate(bytes >> (8 * i)))];
    }
    while (m < parts) : (m += 1) sums[0] += entries[m * abi.centroids_max + code[m]];
    return sums[0] + sums[1];
}

// ---- tables in registers ----
//
// Where bytes of two registers can be permuted by those of a third, four registers hold one byte of all entries of a part. The codes
// of a block are transposed, so that a register has one part of all of them.

const vbmi = x86 and builtin.cpu.has(.x86, .avx512vbmi);
/// Codes of a block, and parts that are transposed together.
const block = 64;
const together_parts = 16;
const Bytes = @Vector(block, u8);
const Words = @Vector(block / 2, u16);
const Doublewords = @Vector(together_parts, u32);

/// A block that is not full takes as long as this many codes one by one.
const tail_least = 24;
/// Of longer codes tails are added one by one.
const parts_max = 64;

/// A copy of the last codes makes a full block. Whatever the others are, every byte has an entry.
noinline fn scan_tail(entries: [*]const u16, parts: usize, codes: [*]const u8, count: u32, out: [*]u32) void {
    var copy: [block * parts_max]u8 = undefined;
    @memcpy(copy[0 .. count * parts], codes[0 .. count * parts]);
    var sums: [block]u32 = undefined;
    scan_blocks(1, entries, parts, &copy, &sums);
    @memcpy(out[0..count], sums[0..count]);
}

inline fn scan_blocks(comptime blocks: u32, entries: [*]const u16, parts: usize, codes: [*]const u8, out: [*]u32) void {
    @setEvalBranchQuota(10_000);
    // Sums of lower and of upper bytes, of even and of odd codes.
    var sums: [blocks][4]Words = @splat(@splat(@splat(0)));
    var first: usize = 0;
    while (first < parts) : (first += together_parts) {
        // The last block starts early enough to be full: parts that were added already are skipped.
        const from = @min(first, parts - together_parts);
        var transposed: [blocks][together_parts]Doublewords = undefined;
        inline for (&transposed, 0..) |*rows, b| transpose(codes + b * block * parts + from, parts, rows);
        for (first - from..together_parts) |m| {
            const own = entries + (from + m) * abi.centroids_max;
            var lower: [4]Bytes = undefined;
            var upper: [4]Bytes = undefined;
            inline for (0..4) |k| {
                const a: Bytes = @bitCast(own[k * block ..][0 .. block / 2].*);
                const b: Bytes = @bitCast(own[k * block + block / 2 ..][0 .. block / 2].*);
                lower[k] = @shuffle(u8, a, b, every_second(0));
                upper[k] = @shuffle(u8, a, b, every_second(1));
            }
            inline for (&sums, transposed) |*four, rows| {
                const names: Bytes = @bitCast(rows[m]);
                inline for (.{ lower, upper }, 0..) |bytes, i| {
                    const found: Words = @bitCast(looked_up(bytes, names));
                    four[2 * i] += found & @as(Words, @splat(0xff));
                    four[2 * i + 1] += found >> @splat(8);
                }
            }
        }
    }
    const Sums = @Vector(block / 2, u32);
    inline for (sums, 0..) |four, b| {
        const even = @as(Sums, four[0]) + (@as(Sums, four[2]) << @splat(8));
        const odd = @as(Sums, four[1]) + (@as(Sums, four[3]) << @splat(8));
        out[b * block ..][0..block].* = std.simd.interlace(.{ even, odd });
    }
}

/// Lower or upper bytes of two registers of entries.
fn every_second(comptime start: i32) @Vector(block, i32) {
    var mask: [block]i32 = undefined;
    for (&mask, 0..) |*m, i| {
        const place = @as(i32, i % (block / 2)) * 2 + start;
        m.* = if (i < block / 2) place else ~place;
    }
    return mask;
}

inline fn looked_up(bytes: [4]Bytes, names: Bytes) Bytes {
    const is_upper = names > @as(Bytes, @splat(127));
    return @select(u8, is_upper, permuted(names, bytes[2], bytes[3]), permuted(names, bytes[0], bytes[1]));
}

/// By the lower 7 bits of each name, a byte of a or of b.
inline fn permuted(names: Bytes, a: Bytes, b: Bytes) Bytes {
    return asm ("vpermi2b %[b], %[a], %[out]"
        : [out] "=v" (-> Bytes),
        : [a] "v" (a),
          [b] "v" (b),
          [names] "0" (names),
    );
}

/// 16 bytes of each of 64 codes: row m then has byte m of all of them.
inline fn transpose(codes: [*]const u8, stride: usize, rows: *[together_parts]Doublewords) void {
    const four_by_sixteen = comptime blk: {
        var mask: [block]i32 = undefined;
        for (&mask, 0..) |*m, i| m.* = i % 4 * together_parts + i / 4;
        break :blk @as(@Vector(block, i32), mask);
    };
    inline for (rows, 0..) |*row, i| {
        const start = codes + 4 * i * stride;
        const bytes: Bytes = if (stride == together_parts) start[0..block].* else std.simd.join(
            std.simd.join(part_of(start), part_of(start + stride)),
            std.simd.join(part_of(start + 2 * stride), part_of(start + 3 * stride)),
        );
        row.* = @bitCast(@shuffle(u8, bytes, undefined, four_by_sixteen));
    }
    // Square blocks of half the size change places in each step.
    inline for (.{ 8, 4, 2, 1 }) |half| {
        const masks = comptime block_masks(half);
        inline for (0..together_parts) |i| if (comptime i & half == 0) {
            const a = rows[i];
            const b = rows[i + half];
            rows[i] = @shuffle(u32, a, b, masks[0]);
            rows[i + half] = @shuffle(u32, a, b, masks[1]);
        };
    }
}

inline fn part_of(code: [*]const u8) @Vector(together_parts, u8) {
    return code[0..together_parts].*;
}

fn block_masks(comptime half: i32) [2]@Vector(together_parts, i32) {
    var masks: [2][together_parts]i32 = undefined;
    for (0..together_parts) |lane_unsigned| {
        const lane: i32 = lane_unsigned;
        const of_b = lane & half != 0;
        masks[0][lane_unsigned] = if (of_b) ~(lane - half) else lane;
        masks[1][lane_unsigned] = if (of_b) ~lane else lane + half;
    }
    return .{ masks[0], masks[1] };
}
