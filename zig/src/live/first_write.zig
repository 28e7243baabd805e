//! The first write to an index that was built.
//!
//! A build leaves the files of its segment in the folder of the index itself. The first write gives them a second name in a
//! folder of their own, as every other segment has, and writes live.json, which names it. Then the first names go, the
//! manifest first: an older velo finds no index rather than a wrong one.
//!
//! Killed before live.json is there, the folder is as the build left it, and the second names are litter; killed after, the
//! next writer takes the rest of the first names away.
const std = @import("std");
const diagnostics = @import("diagnostic.zig");
const find = @import("find.zig");
const manifest_file = @import("manifest.zig");
const scan = @import("scan.zig");
const Diagnostic = diagnostics.Diagnostic;
const Error = diagnostics.Error;
const file_error = diagnostics.file_error;
const segment_manifest = @import("layout").manifest;

pub fn FirstWrite(comptime Live: type) type {
    return struct {
        /// The manifest of a folder as its build left it: one segment, and no log yet. No other code knows of this form. All memory
        /// is `arena`'s.
        pub fn describe_build(self: *Live, arena: std.mem.Allocator, diagnostic: *Diagnostic) Error!manifest_file.FolderManifest {
            var parsed = try read_segment_manifest(self, segment_manifest.file_name, diagnostic);
            defer parsed.deinit();
            const found = &parsed.value;
            const dtype = scan.Dtype.of(found.dtype) orelse return diagnostics.damaged(diagnostic, segment_manifest.file_name, "names a type that is none", .{});
            const uuid = try arena.dupe(u8, found.uuid);
            return .{
                .readers_understand = manifest_file.understood(false, false),
                .uuid = &@as([32]u8, @splat('0')),
                .generation = 0,
                .dim = found.dim,
                .metric = try arena.dupe(u8, found.metric),
                .dtype = @tagName(dtype),
                .built = uuid,
                .sequence = 0,
                .next_row = 0,
                .next_file = 2,
                .parts = try arena.dupe(manifest_file.Segment, &.{.{ .path = manifest_file.built_segment, .uuid = uuid, .n = found.n }}),
                .first_log = "",
            };
        }

        pub fn read_segment_manifest(self: *Live, name: []const u8, diagnostic: *Diagnostic) Error!segment_manifest.Parsed {
            const text = try diagnostics.read_file(self.allocator, self.store, name, segment_manifest.bytes_max, diagnostic) orelse {
                diagnostic.say("the folder holds no index", .{});
                return error.NotAnIndex;
            };
            defer self.allocator.free(text);
            return segment_manifest.parse(self.allocator, text) catch |err| switch (err) {
                error.BadManifest => diagnostics.damaged(diagnostic, segment_manifest.file_name, "is damaged", .{}),
                error.NewerVersion => diagnostics.newer(diagnostic, segment_manifest.file_name),
                error.OlderVersion => {
                    diagnostic.in_file(segment_manifest.file_name, "the index was written by an older velo: build it again", .{});
                    return error.UnsupportedVersion;
                },
                error.OutOfMemory => error.OutOfMemory,
            };
        }

        /// The first write, with the lock held: when this returns the folder has a manifest and an empty log.
        pub fn adopt(self: *Live, diagnostic: *Diagnostic) Error!void {
            const segment = &self.segments.items[0];
            if (segment.finder == null) try self.open_finder(segment, diagnostic);
            self.prng.source.fill(self.uuid[0..16]);
            const raw: [16]u8 = self.uuid[0..16].*;
            _ = std.fmt.bufPrint(&self.uuid, "{x}", .{&raw}) catch unreachable;
            make_segment(self, segment.path, diagnostic) catch |err| {
                self.store.remove_folder(segment.path) catch {}; // litter: the next try takes it away
                return err;
            };
            self.write_new_manifest(self.segments.items, self.delta, self.flushes, diagnostic) catch |err| {
                if (!self.poisoned) self.store.remove_folder(segment.path) catch {};
                return err;
            };
            {
                self.seen.lock();
                defer self.seen.unlock();
                self.show_all();
            }
            remove_old_names(self, diagnostic) catch |err| {
                self.poisoned = true;
                return err;
            };
        }

        fn make_segment(self: *Live, path: []const u8, diagnostic: *Diagnostic) Error!void {
            const store = self.store;
            var parsed = try read_segment_manifest(self, segment_manifest.file_name, diagnostic);
            defer parsed.deinit();
            if (!std.mem.eql(u8, parsed.value.uuid, self.segments.items[0].uuid)) {
                diagnostic.say("the index was replaced by another one: open it again", .{});
                return error.Unsupported;
            }
            store.remove_folder(path) catch |err| return file_error(diagnostic, path, "remove", err);
            store.make_folder(path) catch |err| return file_error(diagnostic, path, "create", err);
            for (parsed.value.files) |file| try link_into(self, path, file.name, diagnostic);
            try link_into(self, path, segment_manifest.file_name, diagnostic);
            var buffer: [128]u8 = undefined;
            const name = std.fmt.bufPrint(&buffer, "{s}/{s}", .{ path, find.file_name }) catch unreachable; // our own short names
            try diagnostics.write_file(store, name, self.segments.items[0].finder_owned.?, diagnostic);
            try diagnostics.sync_folder(store, path, diagnostic);
        }

        fn link_into(self: *Live, path: []const u8, name: []const u8, diagnostic: *Diagnostic) Error!void {
            const store = self.store;
            var buffer: [512]u8 = undefined;
            const to = std.fmt.bufPrint(&buffer, "{s}/{s}", .{ path, name }) catch
                return diagnostics.damaged(diagnostic, segment_manifest.file_name, "names a file whose name is too long", .{});
            store.link(name, to) catch |err| switch (@as(anyerror, err)) {
                error.FileNotFound => return diagnostics.damaged(diagnostic, name, "is missing from the index", .{}),
                // File systems without hard links.
                error.PermissionDenied, error.AccessDenied => {
                    diagnostic.in_file(name, "the file system gives {s} no second name, which live data needs", .{name});
                    return error.Unsupported;
                },
                else => return file_error(diagnostic, name, "link", err),
            };
        }

        /// The manifest is gone for good before anything is acknowledged; the other names may go whenever.
        pub fn remove_old_names(self: *Live, diagnostic: *Diagnostic) Error!void {
            const store = self.store;
            store.remove(segment_manifest.file_name) catch |err| switch (@as(anyerror, err)) {
                error.FileNotFound => {},
                else => return file_error(diagnostic, segment_manifest.file_name, "remove", err),
            };
            try diagnostics.sync_folder(store, ".", diagnostic);
            var arena = std.heap.ArenaAllocator.init(self.allocator);
            defer arena.deinit();
            const names = store.list(arena.allocator()) catch |err| return file_error(diagnostic, ".", "list", err);
            if (self.segments.items.len == 0) return;
            var buffer: [512]u8 = undefined;
            for (names) |name| {
                const inside = std.fmt.bufPrint(&buffer, "{s}/{s}", .{ self.segments.items[0].path, name }) catch continue;
                if (store.exists(inside) catch false) diagnostics.discard(store, name);
            }
        }
    };
}
