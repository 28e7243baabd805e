//! Memory for codes, pages and slots: aligned for O_DIRECT and for vector loads, on huge pages where asked, given back
//! to the system on free (the memory promise counts resident bytes, so no allocator may keep them).
const std = @import("std");
const builtin = @import("builtin");
const assert = std.debug.assert;
const linux = std.os.linux;

pub const page_size = 4096;
const huge_page_size = 2 << 20;

pub const AlignedBytes = struct {
    bytes: []align(page_size) u8,

    pub const empty: AlignedBytes = .{ .bytes = &.{} };

    pub const Options = struct {
        /// Ask the kernel for transparent huge pages: random access to large arrays then misses the TLB far less.
        /// A wish: without them everything works, only slower.
        huge_pages: bool = false,
    };

    /// Zeroed memory, aligned to 4096 bytes (with huge pages and from 2 MiB on, to 2 MiB).
    pub fn alloc(len: usize, options: Options) error{OutOfMemory}!AlignedBytes {
        if (len == 0) return .empty;
        const size = mapped_size(len) orelse return error.OutOfMemory;
        if (!options.huge_pages or len < huge_page_size) return .{ .bytes = (try map(size))[0..len] };

        // Map more than needed, cut off what lies outside the aligned middle.
        const room = std.math.add(usize, size, huge_page_size) catch return error.OutOfMemory;
        const raw = try map(room);
        const start = std.mem.alignForward(usize, @intFromPtr(raw.ptr), huge_page_size) - @intFromPtr(raw.ptr);
        if (start > 0) std.posix.munmap(raw[0..start]);
        const end = start + size;
        if (end < raw.len) std.posix.munmap(@alignCast(raw[end..]));
        const kept: []align(page_size) u8 = @alignCast(raw[start..end]);
        std.posix.madvise(kept.ptr, kept.len, linux.MADV.HUGEPAGE) catch {}; // kernels without THP refuse; see Options
        return .{ .bytes = kept[0..len] };
    }

    pub fn free(self: *AlignedBytes) void {
        if (self.bytes.len > 0) std.posix.munmap(self.bytes.ptr[0..mapped_size(self.bytes.len).?]);
        self.* = .empty;
    }

    fn mapped_size(len: usize) ?usize {
        const padded = std.math.add(usize, len, page_size - 1) catch return null;
        return padded / page_size * page_size;
    }

    fn map(size: usize) error{OutOfMemory}![]align(page_size) u8 {
        return std.posix.mmap(
            null,
            size,
            std.posix.PROT.READ | std.posix.PROT.WRITE,
            .{ .TYPE = .PRIVATE, .ANONYMOUS = true },
            -1,
            0,
        ) catch error.OutOfMemory;
    }
};

/// The C allocator for what is small; what is large is mapped, and unmapped when it is freed. (glibc's own way of doing
/// that ends with the first large thing freed: from then on it keeps memory of that size for later.)
pub const allocator: std.mem.Allocator = .{ .ptr = undefined, .vtable = &.{
    .alloc = &alloc_either,
    .resize = &resize_either,
    .remap = &remap_either,
    .free = &free_either,
} };

/// From this size on memory is mapped.
const mapped_min = 128 << 10;

fn allocator_for(len: usize) std.mem.Allocator {
    return if (len < mapped_min) std.heap.c_allocator else std.heap.page_allocator;
}

fn alloc_either(_: *anyopaque, len: usize, alignment: std.mem.Alignment, address: usize) ?[*]u8 {
    return allocator_for(len).rawAlloc(len, alignment, address);
}

fn resize_either(_: *anyopaque, memory: []u8, alignment: std.mem.Alignment, len: usize, address: usize) bool {
    if ((memory.len < mapped_min) != (len < mapped_min)) return false;
    return allocator_for(len).rawResize(memory, alignment, len, address);
}

fn remap_either(_: *anyopaque, memory: []u8, alignment: std.mem.Alignment, len: usize, address: usize) ?[*]u8 {
    if ((memory.len < mapped_min) != (len < mapped_min)) return null;
    return allocator_for(len).rawRemap(memory, alignment, len, address);
}

fn free_either(_: *anyopaque, memory: []u8, alignment: std.mem.Alignment, address: usize) void {
    allocator_for(memory.len).rawFree(memory, alignment, address);
}

/// Memory that costs address space only until it is touched, for arrays made for the most that may come. `Allocator.alloc`
/// fills what it hands out wherever checks are on, and filled memory is resident. Debug fills here too, so that tests see
/// what is read before it is written. Either way `Allocator.free` would do, but it fills once more.
pub fn alloc_untouched(from: std.mem.Allocator, comptime T: type, n: usize) error{OutOfMemory}![]T {
    if (builtin.mode == .Debug or n == 0) return from.alloc(T, n);
    const size = std.math.mul(usize, @sizeOf(T), n) catch return error.OutOfMemory;
    const bytes = from.rawAlloc(size, .of(T), @returnAddress()) orelse return error.OutOfMemory;
    return @as([*]T, @ptrCast(@alignCast(bytes)))[0..n];
}

pub fn free_untouched(from: std.mem.Allocator, memory: anytype) void {
    if (builtin.mode == .Debug or memory.len == 0) return from.free(memory);
    from.rawFree(std.mem.sliceAsBytes(memory), .fromByteUnits(@typeInfo(@TypeOf(memory)).pointer.alignment), @returnAddress());
}

/// Gives the system what the C allocator keeps of freed memory: an open index, or a caller's arrays, may have left much.
pub fn give_back() void {
    if (comptime builtin.target.isGnuLibC()) _ = malloc_trim(0);
}
extern "c" fn malloc_trim(pad: usize) c_int;

comptime {
    assert(std.heap.page_size_min <= page_size);
}

test "aligned, zeroed, writable to the last byte, freed" {
    for ([_]usize{ 0, 1, 4095, 4096, 4097, huge_page_size - 1, huge_page_size, 3 * huge_page_size + 5 }) |len| {
        for ([_]bool{ false, true }) |huge_pages| {
            var memory = try AlignedBytes.alloc(len, .{ .huge_pages = huge_pages });
            defer memory.free();
            try std.testing.expectEqual(len, memory.bytes.len);
            if (len == 0) continue;
            const alignment: usize = if (huge_pages and len >= huge_page_size) huge_page_size else page_size;
            try std.testing.expect(@intFromPtr(memory.bytes.ptr) % alignment == 0);
            try std.testing.expect(std.mem.allEqual(u8, memory.bytes, 0));
            @memset(memory.bytes, 0xa5);
        }
    }
}

test "freed memory is unmapped, and a size that cannot be is an error" {
    var memory = try AlignedBytes.alloc(8 << 20, .{ .huge_pages = true });
    const start = memory.bytes.ptr;
    memory.free();
    memory.free(); // the second time there is nothing to free
    var resident: [2048]u8 = undefined;
    const result = linux.syscall3(.mincore, @intFromPtr(start), 8 << 20, @intFromPtr(&resident));
    try std.testing.expectEqual(linux.E.NOMEM, linux.E.init(result));
    try std.testing.expectError(error.OutOfMemory, AlignedBytes.alloc(std.math.maxInt(usize), .{}));
    try std.testing.expectError(error.OutOfMemory, AlignedBytes.alloc(1 << 60, .{ .huge_pages = true }));
}

test "memory of any size is written, grown, shrunk and freed, and large memory is unmapped" {
    for ([_]usize{ 1, 4096, mapped_min - 1, mapped_min, mapped_min + 1, 5 << 20 }) |len| {
        var list: std.ArrayList(u8) = .empty;
        defer list.deinit(allocator);
        try list.appendNTimes(allocator, 0x5a, len);
        for ([_]usize{ len / 2, 3 * len, mapped_min, mapped_min - 1, 1 }) |other| {
            var bytes = try allocator.dupe(u8, list.items);
            bytes = try allocator.realloc(bytes, other);
            defer allocator.free(bytes);
            const kept = @min(other, len);
            try std.testing.expect(std.mem.allEqual(u8, bytes[0..kept], 0x5a));
            @memset(bytes, 0xa5);
        }
        const owned = try list.toOwnedSlice(allocator);
        const start = owned.ptr;
        allocator.free(owned);
        give_back();
        if (len < mapped_min) continue;
        var resident: [2048]u8 = undefined;
        const result = linux.syscall3(.mincore, std.mem.alignBackward(usize, @intFromPtr(start), page_size), page_size, @intFromPtr(&resident));
        try std.testing.expectEqual(linux.E.NOMEM, linux.E.init(result));
    }
}

test "untouched memory is not resident, wherever the allocators do not fill for tests" {
    const len = 4 << 20;
    const memory_of = try alloc_untouched(allocator, u64, len / 8);
    defer free_untouched(allocator, memory_of);
    memory_of[memory_of.len - 1] = 7;
    var resident: [len / page_size]u8 = undefined;
    try std.testing.expectEqual(0, linux.syscall3(.mincore, @intFromPtr(memory_of.ptr), len, @intFromPtr(&resident)));
    var pages: usize = 0;
    for (resident) |state| pages += state & 1;
    const touched: usize = if (builtin.mode == .Debug) resident.len else 1;
    try std.testing.expectEqual(touched, pages);
    try std.testing.expectError(error.OutOfMemory, alloc_untouched(allocator, u64, std.math.maxInt(usize)));
    free_untouched(allocator, try alloc_untouched(allocator, u64, 0));
}
