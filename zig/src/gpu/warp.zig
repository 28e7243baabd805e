//! A warp: 32 lanes in step, from one source for both machines. A lane's value is a scalar in PTX and a vector of 32 on the host,
//! where kernels are tested; a plain scalar is the same in all lanes on both. So control flow may depend on plain scalars alone:
//! a branch on a lane's value is a `select`, or the mask of a load or a store.
//!
//! Instructions between lanes are LLVM's intrinsics. These are convergent: no pass moves them into a branch, as it may move
//! inline assembly.
const std = @import("std");
const builtin = @import("builtin");
const lanes = @import("layout.zig").lanes;

pub const on_device = builtin.cpu.arch == .nvptx64;

fn Lanes(comptime T: type) type {
    return if (on_device) T else @Vector(lanes, T);
}

pub const U = Lanes(u32);
pub const I = Lanes(i32);
pub const F = Lanes(f32);
/// `quant.Candidate.key`
pub const K = Lanes(i64);
pub const B = Lanes(bool);
/// Places in global memory, of bytes or elements.
pub const Address = Lanes(u64);

/// The type of one lane.
fn Scalar(comptime T: type) type {
    return if (on_device) T else @typeInfo(T).vector.child;
}

/// Memory of the card, of all warps.
pub fn Global(comptime T: type) type {
    return if (on_device) [*]addrspace(.global) T else [*]T;
}

/// Memory of one warp.
pub fn Shared(comptime T: type) type {
    return if (on_device) [*]addrspace(.shared) T else [*]T;
}

pub inline fn at_address(comptime T: type, address: u64) Global(T) {
    return @ptrFromInt(address);
}

const all: u32 = std.math.maxInt(u32);

const instructions = struct {
    extern fn @"llvm.nvvm.read.ptx.sreg.laneid"() u32;
    extern fn @"llvm.nvvm.read.ptx.sreg.tid.x"() u32;
    extern fn @"llvm.nvvm.read.ptx.sreg.ntid.x"() u32;
    extern fn @"llvm.nvvm.read.ptx.sreg.ctaid.x"() u32;
    extern fn @"llvm.nvvm.shfl.sync.idx.i32"(members: u32, value: u32, from: u32, clamp: u32) u32;
    extern fn @"llvm.nvvm.shfl.sync.bfly.i32"(members: u32, value: u32, mask: u32, clamp: u32) u32;
    extern fn @"llvm.nvvm.vote.ballot.sync"(members: u32, value: bool) u32;
    extern fn @"llvm.nvvm.match.any.sync.i32"(members: u32, value: u32) u32;
    extern fn @"llvm.nvvm.redux.sync.umin"(value: u32, members: u32) u32;
    extern fn @"llvm.nvvm.redux.sync.or"(value: u32, members: u32) u32;
    extern fn @"llvm.nvvm.bar.warp.sync"(members: u32) void;
    extern fn @"llvm.nvvm.prmt"(a: u32, b: u32, bytes: u32) u32;
    extern fn @"llvm.nvvm.idp4a.u.s"(a: u32, b: u32, sum: i32) i32;
};

/// This warp's number in its block, warps of a block, and the block's number: on the device alone.
pub inline fn place() struct { warp: u32, warps: u32, block: u32 } {
    return .{
        .warp = instructions.@"llvm.nvvm.read.ptx.sreg.tid.x"() / lanes,
        .warps = instructions.@"llvm.nvvm.read.ptx.sreg.ntid.x"() / lanes,
        .block = instructions.@"llvm.nvvm.read.ptx.sreg.ctaid.x"(),
    };
}

pub inline fn lane() U {
    return if (on_device) instructions.@"llvm.nvvm.read.ptx.sreg.laneid"() else std.simd.iota(u32, lanes);
}

/// The same value in every lane.
pub inline fn splat(comptime T: type, value: Scalar(T)) T {
    return if (on_device) value else @splat(value);
}

pub inline fn select(comptime T: type, where: B, value: T, otherwise: T) T {
    if (on_device) return if (where) value else otherwise;
    return @select(Scalar(T), where, value, otherwise);
}

pub inline fn both(a: B, b: B) B {
    return if (on_device) a and b else a & b;
}

pub inline fn not(a: B) B {
    return if (on_device) !a else ~a;
}

/// Lanes below `count`.
pub inline fn first(count: u32) B {
    return lane() < splat(U, count);
}

/// `from[at]`, of the element 0 where the lane is masked; that one is always there.
pub inline fn load(comptime T: type, from: anytype, at: U, where: B) T {
    const inside = select(U, where, at, splat(U, 0));
    if (on_device) return from[inside];
    var out: T = undefined;
    inline for (0..lanes) |i| out[i] = from[inside[i]];
    return out;
}

/// The same of more elements than 32 bits count.
pub inline fn load_far(comptime T: type, from: anytype, at: Address, where: B) T {
    if (on_device) return from[if (where) at else 0];
    var out: T = undefined;
    inline for (0..lanes) |i| out[i] = from[if (where[i]) at[i] else 0];
    return out;
}

pub inline fn load_bytes(from: Global(u8), at: U) U {
    if (on_device) return from[at];
    var out: U = undefined;
    inline for (0..lanes) |i| out[i] = from[at[i]];
    return out;
}

pub inline fn store(comptime T: type, to: anytype, at: U, value: T, where: B) void {
    if (on_device) {
        if (where) to[at] = value;
        return;
    }
    for (0..lanes) |i| if (where[i]) {
        to[at[i]] = value[i];
    };
}

/// `count` words one after the other, from the byte `at` on: a multiple of `alignment`, 4 to 16.
pub inline fn load_words(comptime count: u32, comptime alignment: u32, from: u64, at: Address) [count]U {
    const together = alignment / 4;
    comptime std.debug.assert(count % together == 0);
    var out: [count]U = undefined;
    if (on_device) {
        inline for (0..count / together) |i| {
            const some: *align(alignment) addrspace(.global) const @Vector(together, u32) = @ptrFromInt(from + at + i * alignment);
            const words = some.*;
            inline for (0..together) |j| out[i * together + j] = words[j];
        }
    } else for (0..lanes) |i| {
        const words: [*]align(alignment) const u32 = @ptrFromInt(from + at[i]);
        inline for (0..count) |j| out[j][i] = words[j];
    }
    return out;
}

/// Products of 32 bits in 64.
pub inline fn times(a: U, b: u32) Address {
    return @as(Address, a) * splat(Address, b);
}

/// Two words as one, and its halves.
pub inline fn pair(lower: U, upper: U) K {
    return @bitCast(@as(Address, lower) | @as(Address, upper) << if (on_device) 32 else @splat(32));
}

pub inline fn low(both_words: K) U {
    return @truncate(@as(Address, @bitCast(both_words)));
}

pub inline fn high(both_words: K) U {
    return @truncate(@as(Address, @bitCast(both_words)) >> if (on_device) 32 else @splat(32));
}

/// A bit for each lane.
pub inline fn ballot(value: B) u32 {
    return if (on_device) instructions.@"llvm.nvvm.vote.ballot.sync"(all, value) else @bitCast(value);
}

/// How many of the lanes of `mask` come before this one.
pub inline fn rank(mask: u32) U {
    return @popCount(splat(U, mask) & ((splat(U, 1) << @intCast(lane())) - splat(U, 1)));
}

/// The value of the lane `from`, below 32.
pub inline fn shuffle(value: U, from: U) U {
    if (on_device) return instructions.@"llvm.nvvm.shfl.sync.idx.i32"(all, value, from, lanes - 1);
    var out: U = undefined;
    for (0..lanes) |i| out[i] = value[from[i]];
    return out;
}

/// Sums over teams of lanes, `team` a power of two: every lane gets that of its own.
pub inline fn team_sum(value: I, team: u32) I {
    var sum = value;
    var apart = team / 2;
    while (apart > 0) : (apart /= 2) {
        const other: I = @bitCast(if (on_device)
            instructions.@"llvm.nvvm.shfl.sync.bfly.i32"(all, @as(U, @bitCast(sum)), apart, lanes - 1)
        else
            shuffle(@bitCast(sum), lane() ^ splat(U, apart)));
        sum +%= other;
    }
    return sum;
}

pub inline fn least(value: U) u32 {
    return if (on_device) instructions.@"llvm.nvvm.redux.sync.umin"(value, all) else @reduce(.Min, value);
}

/// The bits that any lane has.
pub inline fn either_of(value: U) u32 {
    return if (on_device) instructions.@"llvm.nvvm.redux.sync.or"(value, all) else @reduce(.Or, value);
}

/// The lowest five bits, by which a word can be shifted.
pub inline fn shift_of(value: U) if (on_device) u5 else @Vector(lanes, u5) {
    return @truncate(value);
}

/// Lanes before which no lane has the same value.
pub inline fn is_first_of_same(value: U) B {
    if (on_device) {
        const same = instructions.@"llvm.nvvm.match.any.sync.i32"(all, value);
        return @ctz(same) == lane();
    }
    var out: B = @splat(true);
    for (0..lanes) |i| for (0..i) |j| {
        if (value[i] == value[j]) out[i] = false;
    };
    return out;
}

/// Makes stores of other lanes to shared memory visible.
pub inline fn sync() void {
    if (on_device) instructions.@"llvm.nvvm.bar.warp.sync"(all);
}

/// Bytes of two words by their numbers, 0 to 7; the first is the lowest.
pub inline fn bytes(a: U, b: U, comptime chosen: [4]u3) U {
    if (on_device) {
        const code = comptime @as(u32, chosen[0]) | @as(u32, chosen[1]) << 4 | @as(u32, chosen[2]) << 8 | @as(u32, chosen[3]) << 12;
        return instructions.@"llvm.nvvm.prmt"(a, b, code);
    }
    var out = splat(U, 0);
    inline for (chosen, 0..) |byte, i| {
        const word = if (byte < 4) a else b;
        out |= (word >> @splat(8 * (@as(u5, byte) % 4)) & splat(U, 0xff)) << @splat(8 * i);
    }
    return out;
}

/// sum + Σ a_i·b_i of four bytes each, those of `a` without a sign.
pub inline fn dp4a(sum: I, a: U, b: U) I {
    if (on_device) return instructions.@"llvm.nvvm.idp4a.u.s"(a, b, sum);
    var out = sum;
    inline for (0..4) |i| {
        const x: I = @bitCast(a >> @splat(8 * i) & splat(U, 0xff));
        const y: I = @as(I, @bitCast(b << @splat(24 - 8 * i))) >> @splat(24);
        out += x * y;
    }
    return out;
}
