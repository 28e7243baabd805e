//! One segment in device memory: codes, factors, decoded links, centers and entry points, as kernels read them (gpu/layout.zig).
//! Uploaded once when the segment is opened, given back when it is closed.
const std = @import("std");
const base = @import("base");
const layout_room = @import("layout");
const search = @import("search");
const gpu = @import("gpu");
const driver = gpu.driver;
const layout = gpu.layout;

/// Page-locked memory, in which rows get the stride of kernels.
const staging_bytes = 8 << 20;

pub const Resident = struct {
    shared: *const search.Shared,
    index: layout.Index,
    buffers: [parts]driver.Buffer,
    bytes: u64,

    const parts = std.meta.fields(Part).len;
    const Part = enum { codes, factors, center_ids, links, entries, entry_starts, center_norms2 };

    /// Why a segment cannot be navigated on a GPU; null where it can.
    pub fn obstacle(shared: *const search.Shared) ?[]const u8 {
        if (shared.plan != .links_in_memory) return "its links are not in memory";
        if (shared.reader.links == null) return "its neighbors share links";
        if (shared.reader.codes.params.memory_bits > layout.bits_max) return "its codes are wider than kernels read";
        return null;
    }

    fn sizes_of(shared: *const search.Shared, link_stride: u32) [parts]u64 {
        const codes = &shared.reader.codes;
        const n: u64 = codes.n;
        const centers: u64 = shared.center_norms2.len;
        return .{
            n * layout.code_stride_of(codes.params.dim, codes.params.memory_bits) + layout.code_padding,
            n * 4,
            n,
            n * link_stride * 4,
            @as(u64, shared.entries.len) * 4,
            (centers + 1) * 4,
            centers * 4,
        };
    }

    /// The card is this thread's. A segment that does not fit is an error that names the needed and the free bytes.
    pub fn upload(card: *const driver.Card, shared: *const search.Shared, diagnostic: *driver.Diagnostic) driver.Error!Resident {
        const codes = &shared.reader.codes;
        const link_stride = layout.link_stride_of(try longest_list(shared, diagnostic));
        const sizes = sizes_of(shared, link_stride);
        var self: Resident = .{
            .shared = shared,
            .index = undefined,
            .buffers = @splat(.none),
            .bytes = 0,
        };
        for (sizes) |size| self.bytes += size;
        try card.require(self.bytes, "segment", diagnostic);
        errdefer self.deinit(card);
        for (sizes, &self.buffers) |size, *buffer| buffer.* = try card.alloc(size, diagnostic);
        self.index = .{
            .codes = self.address(.codes),
            .factors = self.address(.factors),
            .center_ids = self.address(.center_ids),
            .links = self.address(.links),
            .entries = self.address(.entries),
            .entry_starts = self.address(.entry_starts),
            .center_norms2 = self.address(.center_norms2),
            .n = codes.n,
            .dim = codes.params.dim,
            .bits = codes.params.memory_bits,
            .code_stride = layout.code_stride_of(codes.params.dim, codes.params.memory_bits),
            .link_stride = link_stride,
            .center_count = @intCast(shared.center_norms2.len),
            .entry_vertex = shared.reader.header.entry_vertex,
        };
        const staging = try card.alloc_host(staging_bytes, diagnostic);
        defer card.free_host(staging);
        try self.put(card, .factors, std.mem.sliceAsBytes(codes.factors), diagnostic);
        try self.put(card, .center_ids, codes.center_ids, diagnostic);
        try self.put(card, .entries, std.mem.sliceAsBytes(shared.entries), diagnostic);
        try self.put(card, .entry_starts, std.mem.sliceAsBytes(shared.entry_starts), diagnostic);
        try self.put(card, .center_norms2, std.mem.sliceAsBytes(shared.center_norms2), diagnostic);
        try self.put_codes(card, staging, diagnostic);
        try self.put_links(card, staging, diagnostic);
        try card.synchronize(null, diagnostic);
        return self;
    }

    pub fn deinit(self: *Resident, card: *const driver.Card) void {
        for (&self.buffers) |*buffer| card.free(buffer);
    }

    fn address(self: *const Resident, part: Part) u64 {
        return self.buffers[@intFromEnum(part)].address;
    }

    fn put(self: *const Resident, card: *const driver.Card, part: Part, bytes: []const u8, diagnostic: *driver.Diagnostic) driver.Error!void {
        try card.upload(self.buffers[@intFromEnum(part)], 0, bytes, null, diagnostic);
    }

    /// Rows get the stride of kernels; bytes behind the last one read as zero.
    fn put_codes(self: *const Resident, card: *const driver.Card, staging: []u8, diagnostic: *driver.Diagnostic) driver.Error!void {
        const codes = &self.shared.reader.codes;
        const row_bytes = codes.params.upper_bytes();
        const stride: usize = self.index.code_stride;
        const to = self.buffers[@intFromEnum(Part.codes)];
        if (row_bytes == stride) {
            try card.upload(to, 0, codes.bytes[0 .. codes.n * row_bytes], null, diagnostic);
        } else {
            const together = staging.len / stride;
            var first: usize = 0;
            while (first < codes.n) : (first += together) {
                const count = @min(together, codes.n - first);
                for (0..count) |i| {
                    const row = staging[i * stride ..][0..stride];
                    @memcpy(row[0..row_bytes], codes.bytes[(first + i) * row_bytes ..][0..row_bytes]);
                    @memset(row[row_bytes..], 0);
                }
                try send(card, to, first * stride, staging[0 .. count * stride], diagnostic);
            }
        }
        @memset(staging[0..layout.code_padding], 0);
        try send(card, to, codes.n * stride, staging[0..layout.code_padding], diagnostic);
    }

    fn put_links(self: *const Resident, card: *const driver.Card, staging: []u8, diagnostic: *driver.Diagnostic) driver.Error!void {
        const links = &self.shared.reader.links.?;
        const stride: usize = self.index.link_stride;
        const to = self.buffers[@intFromEnum(Part.links)];
        const words = @as([*]u32, @ptrCast(@alignCast(staging.ptr)))[0 .. staging.len / 4];
        const together = words.len / stride;
        var neighbors: [layout_room.adjacency.neighbors_max]u32 = undefined;
        var first: u32 = 0;
        while (first < links.n) : (first += @intCast(together)) {
            const count = @min(together, links.n - first);
            for (0..count) |i| {
                const ids = links.decode(first + @as(u32, @intCast(i)), &neighbors) catch return damaged(diagnostic);
                const row = words[i * stride ..][0..stride];
                @memcpy(row[0..ids.len], ids);
                @memset(row[ids.len..], layout.none);
            }
            try send(card, to, first * stride * 4, std.mem.sliceAsBytes(words[0 .. count * stride]), diagnostic);
        }
    }

    /// The staging memory is free again when this returns.
    fn send(card: *const driver.Card, to: driver.Buffer, offset: u64, bytes: []const u8, diagnostic: *driver.Diagnostic) driver.Error!void {
        try card.upload(to, offset, bytes, null, diagnostic);
        try card.synchronize(null, diagnostic);
    }

    fn longest_list(shared: *const search.Shared, diagnostic: *driver.Diagnostic) driver.Error!u32 {
        const links = &shared.reader.links.?;
        var neighbors: [layout_room.adjacency.neighbors_max]u32 = undefined;
        var longest: usize = 0;
        for (0..links.n) |vertex| {
            const ids = links.decode(@intCast(vertex), &neighbors) catch return damaged(diagnostic);
            longest = @max(longest, ids.len);
        }
        return @intCast(longest);
    }

    fn damaged(diagnostic: *driver.Diagnostic) driver.Error {
        diagnostic.set("a list of links is damaged", .{});
        return error.DriverFailed;
    }
};
