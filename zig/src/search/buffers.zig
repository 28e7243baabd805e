//! A worker's page buffers by file, and the stacks that it keeps numbers in.
const std = @import("std");
const base = @import("base");
const io = @import("io");

/// Buffers for pages of one file, and who waits for one.
pub const Pool = struct {
    memory: base.AlignedBytes,
    buffer_count: u32,
    free: Stack,
    starved: Stack,

    /// Sets up the reads of its buffers, which are those from `first` on.
    pub fn init(allocator: std.mem.Allocator, file: u1, reads: []io.Read, first: u32, page_size: u32, slot_count: u32) error{OutOfMemory}!Pool {
        // Kernels and list readers look a little past a page: the next sector is theirs to look at.
        const stride = page_size + io.sector_size;
        var memory: base.AlignedBytes = if (reads.len == 0) .empty else try .alloc(reads.len * stride, .{});
        errdefer memory.free();
        var free = try Stack.init(allocator, @intCast(reads.len));
        errdefer free.deinit(allocator);
        var left = reads.len;
        while (left > 0) {
            left -= 1;
            reads[left] = .{ .file = file, .offset = 0, .buffer = @alignCast(memory.bytes.ptr + left * stride), .length = page_size };
            free.push(first + @as(u32, @intCast(left)));
        }
        return .{ .memory = memory, .buffer_count = @intCast(reads.len), .free = free, .starved = try .init(allocator, slot_count) };
    }

    pub fn deinit(self: *Pool, allocator: std.mem.Allocator) void {
        self.starved.deinit(allocator);
        self.free.deinit(allocator);
        self.memory.free();
    }
};

/// A fixed stack of numbers of slots or buffers.
pub const Stack = struct {
    items: []u32,
    len: u32 = 0,

    pub fn init(allocator: std.mem.Allocator, capacity: u32) error{OutOfMemory}!Stack {
        return .{ .items = try allocator.alloc(u32, capacity) };
    }
    pub fn deinit(self: *Stack, allocator: std.mem.Allocator) void {
        allocator.free(self.items);
    }
    pub fn push(self: *Stack, item: u32) void {
        self.items[self.len] = item;
        self.len += 1;
    }
    pub fn pop(self: *Stack) ?u32 {
        if (self.len == 0) return null;
        self.len -= 1;
        return self.items[self.len];
    }
};
