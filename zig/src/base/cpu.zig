//! Which of the compiled kernel objects this processor can run. Detected once; VELO_CPU_LEVEL may lower it.
const std = @import("std");
const builtin = @import("builtin");

/// In rising order on each architecture; the names are those of the kernel objects in build.zig.
pub const Level = switch (builtin.cpu.arch) {
    .x86_64 => enum(u8) { base, v3, v4 },
    .aarch64 => enum(u8) { base, dotprod },
    else => @compileError("velo builds for x86_64 and aarch64"),
};

var cached = std.atomic.Value(u8).init(unknown);
const unknown = 0xff;

/// "base", "v3", "v4" on x86-64; "base", "dotprod" on aarch64.
pub fn level() []const u8 {
    return @tagName(current());
}

/// Threads that race here compute the same answer.
pub fn current() Level {
    const value = cached.load(.monotonic);
    if (value != unknown) {
        @setRuntimeSafety(builtin.mode == .Debug); // measured (decisions/0007)
        return @enumFromInt(value);
    }
    const chosen = lowered(detect(), std.posix.getenv("VELO_CPU_LEVEL"));
    cached.store(@intFromEnum(chosen), .monotonic);
    return chosen;
}

/// The highest level that this processor and this system run.
pub fn detect() Level {
    return switch (builtin.cpu.arch) {
        .x86_64 => detect_x86_64(),
        .aarch64 => detect_aarch64(),
        else => unreachable,
    };
}

/// `wish` names a level at most as high as `found`; a higher or unknown one is not followed.
fn lowered(found: Level, wish: ?[]const u8) Level {
    const wished = std.meta.stringToEnum(Level, wish orelse return found) orelse return found;
    return if (@intFromEnum(wished) < @intFromEnum(found)) wished else found;
}

fn detect_aarch64() Level {
    const hwcap_asimddp = 1 << 20;
    // libc's, as Zig's own knows only what the start code of a Zig program keeps: in a library that is nothing.
    return if (std.c.getauxval(std.elf.AT_HWCAP) & hwcap_asimddp != 0) .dotprod else .base;
}

const Leaf = struct { eax: u32, ebx: u32, ecx: u32, edx: u32 };

fn detect_x86_64() Level {
    if (cpuid(0, 0).eax < 7) return .base;
    const basic = cpuid(1, 0);
    const extended = cpuid(7, 0);
    const amd = cpuid(0x8000_0001, 0);
    // FMA, SSSE3, CX16, SSE4.1, SSE4.2, MOVBE, POPCNT, OSXSAVE, AVX, F16C; then BMI1, AVX2, BMI2; then LZCNT.
    if (!has(basic.ecx, &.{ 12, 9, 13, 19, 20, 22, 23, 27, 28, 29 })) return .base;
    if (!has(extended.ebx, &.{ 3, 5, 8 }) or !has(amd.ecx, &.{5})) return .base;
    const saved = xgetbv(); // what the system saves at a context switch
    if (saved & 0x06 != 0x06) return .base;
    // AVX512F, DQ, CD, BW, VL; then VBMI, VBMI2, VNNI, BITALG, VPOPCNTDQ; then mask and 512-bit registers saved.
    if (!has(extended.ebx, &.{ 16, 17, 28, 30, 31 }) or !has(extended.ecx, &.{ 1, 6, 11, 12, 14 })) return .v3;
    return if (saved & 0xe6 == 0xe6) .v4 else .v3;
}

fn has(register: u32, comptime bits: []const u5) bool {
    comptime var wanted: u32 = 0;
    inline for (bits) |bit| wanted |= 1 << bit;
    return register & wanted == wanted;
}

fn cpuid(leaf: u32, subleaf: u32) Leaf {
    var eax: u32 = undefined;
    var ebx: u32 = undefined;
    var ecx: u32 = undefined;
    var edx: u32 = undefined;
    asm volatile ("cpuid"
        : [_] "={eax}" (eax),
          [_] "={ebx}" (ebx),
          [_] "={ecx}" (ecx),
          [_] "={edx}" (edx),
        : [_] "{eax}" (leaf),
          [_] "{ecx}" (subleaf),
    );
    return .{ .eax = eax, .ebx = ebx, .ecx = ecx, .edx = edx };
}

/// The low half of XCR0. Call only where cpuid reports OSXSAVE.
fn xgetbv() u32 {
    return asm volatile ("xgetbv"
        : [_] "={eax}" (-> u32),
        : [_] "{ecx}" (@as(u32, 0)),
        : .{ .edx = true });
}

test "detection agrees with the kernel's list of flags" {
    const file = try std.fs.openFileAbsolute("/proc/cpuinfo", .{});
    defer file.close();
    const text = try file.readToEndAlloc(std.testing.allocator, 16 << 20);
    defer std.testing.allocator.free(text);
    const heading = if (builtin.cpu.arch == .x86_64) "\nflags" else "\nFeatures";
    const start = std.mem.indexOf(u8, text, heading) orelse {
        std.debug.print("/proc/cpuinfo lists no flags (an emulated processor?): detection not checked\n", .{});
        return error.SkipZigTest;
    };
    const flags = text[start + 1 ..][0..std.mem.indexOfScalar(u8, text[start + 1 ..], '\n').?];
    try std.testing.expectEqual(expected_level(flags), detect());
}

fn expected_level(flags: []const u8) Level {
    if (builtin.cpu.arch == .aarch64) return if (all_listed(flags, &.{"asimddp"})) .dotprod else .base;
    const v3 = [_][]const u8{ "fma", "ssse3", "cx16", "sse4_1", "sse4_2", "movbe", "popcnt", "xsave", "avx", "f16c", "bmi1", "avx2", "bmi2", "abm" };
    const v4 = [_][]const u8{ "avx512f", "avx512dq", "avx512cd", "avx512bw", "avx512vl", "avx512vbmi", "avx512_vbmi2", "avx512_vnni", "avx512_bitalg", "avx512_vpopcntdq" };
    return if (!all_listed(flags, &v3)) .base else if (!all_listed(flags, &v4)) .v3 else .v4;
}

fn all_listed(flags: []const u8, wanted: []const []const u8) bool {
    for (wanted) |name| {
        var it = std.mem.tokenizeAny(u8, flags, " \t:");
        while (it.next()) |flag| {
            if (std.mem.eql(u8, flag, name)) break;
        } else return false;
    }
    return true;
}

test "a wish lowers the level and never raises it" {
    const top: Level = @enumFromInt(std.meta.fields(Level).len - 1);
    try std.testing.expectEqual(Level.base, lowered(top, "base"));
    try std.testing.expectEqual(top, lowered(top, @tagName(top)));
    try std.testing.expectEqual(Level.base, lowered(.base, @tagName(top)));
    try std.testing.expectEqual(top, lowered(top, "no such level"));
    try std.testing.expectEqual(top, lowered(top, null));
    try std.testing.expect(@intFromEnum(current()) <= @intFromEnum(detect()));
}
